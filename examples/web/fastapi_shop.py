"""An endpoint of FastAPI that sends a message: `uvicorn fastapi_shop:app`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from gantrymq import GantryError, Message, Producer


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Producer]]:
    async with Producer(os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"), "shop-fastapi") as producer:
        yield {"producer": producer}


app = FastAPI(lifespan=lifespan)


class Order(BaseModel):
    id: str
    what: str


@app.post("/orders", status_code=202)
async def place_order(order: Order, request: Request) -> dict[str, str]:
    message = Message("web-orders", order.model_dump_json().encode(), keys=order.id)
    try:
        result = await request.state.producer.send(message)
    except GantryError as e:
        raise HTTPException(503, "the order could not be sent") from e
    return {"message": result.msg_id}
