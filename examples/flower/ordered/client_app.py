"""A ClientApp as any other, with one handler more: it tells its name, so that its place survives restarts."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ordered import task

app = ClientApp()


@app.train()
def train(message, context):
    config, node = context.run_config, context.node_config
    x, y = task.shard(node["partition-id"], node["num-partitions"])
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    seed = [config["seed"], node["partition-id"], message.content["config"]["server-round"]]
    moved = task.train(model, x, y, config["local-steps"], config["step-size"], config["batch"], seed)
    records = {
        "arrays": ArrayRecord({name: Array(array) for name, array in moved.items()}),
        "metrics": MetricRecord({"num-examples": len(x), **task.evaluate(moved, x, y)}),
    }
    return Message(RecordDict(records), reply_to=message)


@app.query("wellorder")
def name(message, context):
    told = ConfigRecord({"partition-id": context.node_config["partition-id"]})
    return Message(RecordDict({"me": told}), reply_to=message)
