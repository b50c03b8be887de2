"""A ClientApp as any other, with one handler more: it tells its name, so that its place survives restarts."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ordered.task import Net, load_data
from ordered.task import train as train_locally

app = ClientApp()
torch.set_num_threads(1)


@app.train()
def train(message, context):
    config, node = context.run_config, context.node_config
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = load_data(node["partition-id"], node["num-partitions"])
    seed = [config["seed"], node["partition-id"], message.content["config"]["server-round"]]
    loss = train_locally(model, x, y, config["local-steps"], config["step-size"], config["batch"], seed)
    records = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(x), "train-loss": loss}),
    }
    return Message(RecordDict(records), reply_to=message)


@app.query("wellorder")
def name(message, context):
    told = ConfigRecord({"partition-id": context.node_config["partition-id"]})
    return Message(RecordDict({"me": told}), reply_to=message)
