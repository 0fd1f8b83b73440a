"""Errors as problem JSON (RFC 9457), with the name, code and advice of the one error table.

Every error of `protocol/errors.py` has its HTTP status here. What may pass by itself (`retriable`)
says so, and its answer has a `Retry-After`. Nothing of what the client sent is repeated, and
nothing of the inside is shown: a fault of ours is in the gateway's log.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from ..protocol import errors as e

logger = logging.getLogger(__name__)

PROBLEM_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1
MAX_FIELDS: Final = 20  # that one answer complains about

#: What an error of the table is to HTTP. One that is not here counts as its parent.
STATUS: Final[dict[type[e.SeglogError], int]] = {
    e.SeglogError: 500,
    e.InternalError: 500,
    e.BadRequest: 400,
    e.UnsupportedApi: 501,
    e.UnsupportedVersion: 501,
    e.LimitExceeded: 422,
    e.TooManyConnections: 503,
    e.HelloRequired: 500,
    e.ShuttingDown: 503,
    e.CannotListen: 500,
    e.UnknownTopic: 404,
    e.TopicExists: 409,
    e.BadTopicName: 422,
    e.BadConfig: 422,
    e.UnknownPartition: 404,
    e.ProtectedTopic: 403,
    e.BadBatch: 422,
    e.DamagedBatch: 500,
    e.BatchTooLarge: 413,
    e.UnsupportedCodec: 501,
    e.OffsetOutOfRange: 416,
    e.LogTruncated: 410,
    e.StorageFull: 507,
    e.PartitionOffline: 503,
    e.DamagedLog: 500,
    e.FolderLocked: 500,
    e.StorageError: 500,
    e.SequenceGap: 503,
    e.DuplicateSequence: 503,
    e.ProducerFenced: 503,
    e.UnknownProducer: 503,
    e.UnknownGroup: 404,
    e.UnknownMember: 409,
    e.StaleMemberEpoch: 409,
    e.MemberFenced: 409,
    e.GroupNotEmpty: 409,
    e.GroupTaken: 409,
    e.NoCommonAssignor: 409,
    e.NotOwner: 409,
    e.BadGroupName: 422,
    e.ClientError: 500,
    e.ConnectionLost: 503,
    # Whether it was done is not known: a client that repeats what fails with 503 must not be led
    # to do it twice.
    e.RequestTimeout: 504,
    e.DeliveryTimeout: 504,
    e.ClientClosed: 503,
    e.NoBroker: 503,
    e.CallbackFailed: 500,
    e.StepCommitted: 409,
    e.StagedDataGone: 410,
}


#: Where the table's advice is for programs that use the client library.
ADVICE: Final[dict[type[e.SeglogError], str]] = {
    e.OffsetOutOfRange: "Read from earliest or latest, or from an offset between those in details",
    e.RequestTimeout: "Look at the broker's load, or raise http.broker.timeout.ms",
    e.BatchTooLarge: "Send smaller records, or raise the topic's max.batch.bytes",
    e.ClientClosed: "Retry: it works again once the gateway is back",
    e.BadRequest: "Correct what is named; /docs has the form of every request",
}


class Mistake(BaseModel):
    """One thing that is wrong with a request."""

    field: str = Field(description="where it stands, such as body.records.3.key")
    message: str


class Problem(BaseModel):
    """What went wrong, and what to do next."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="`urn:seglog:` and the name")
    title: str = Field(description="the HTTP status in words")
    status: int
    detail: str = Field(description="what happened")
    name: str = Field(description="the error's name: UNKNOWN_TOPIC")
    code: int = Field(description="the error's number; it never changes")
    retriable: bool = Field(description="whether the same request may succeed later, unchanged")
    advice: str = Field(description="what to do next")
    details: dict[str, int] | None = Field(None, description="numbers, such as log_start")
    errors: list[Mistake] | None = Field(None, description="of a request that has not the form")


class Refused(HTTPException):
    """A limit of the gateway's own. An HTTPException, so that nothing on its way takes it for a
    body that cannot be read."""

    def __init__(self, status: int, error: e.SeglogError) -> None:
        super().__init__(status, detail=error.what)
        self.error = error


def status_of(error: e.SeglogError) -> int:
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def problem(
    error: e.SeglogError, status: int | None = None, advice: str | None = None, **more: Any
) -> dict[str, Any]:
    """The body of a problem."""
    status = status_of(error) if status is None else status
    details = error.details()
    return {
        "type": f"urn:seglog:{error.wire_name()}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": error.what,
        "name": error.wire_name(),
        "code": error.code,
        "retriable": error.retriable,
        "advice": advice or ADVICE.get(type(error), error.advice),
        **({"details": details} if details else {}),
        **more,
    }


def problem_response(body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    extra = dict(headers or {})
    if body["retriable"] and body["status"] >= 429:
        extra["Retry-After"] = str(RETRY_AFTER_S)
    return Response(
        msgspec.json.encode(body), body["status"], headers=extra, media_type=PROBLEM_TYPE
    )


# --- the handlers --------------------------------------------------------------------------------


def add_handlers(app: FastAPI) -> None:
    app.add_exception_handler(e.SeglogError, _on_seglog_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_defect)


async def _on_seglog_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, e.SeglogError)
    if status_of(error) == HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.error("a request failed: %s", error)
    return problem_response(problem(error))


async def _on_validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    fields = [
        {"field": ".".join(map(str, each["loc"])), "message": _plain(str(each["msg"]))}
        for each in error.errors()[:MAX_FIELDS]
    ]
    first = fields[0]
    told = e.BadRequest(f"{first['field']}: {first['message']}")
    return problem_response(problem(told, 422, errors=fields))


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if isinstance(error, Refused):
        return problem_response(problem(error.error, error.status_code), headers)
    advice = "See /docs for the paths, their methods and bodies"
    told = e.BadRequest(str(error.detail))
    return problem_response(problem(told, error.status_code, advice), headers)


async def _on_defect(_: Request, error: Exception) -> Response:
    """The server logs it with its traceback."""
    told = e.InternalError("the gateway met a fault of its own")
    advice = "This is a defect in the gateway: its log has the details"
    return problem_response(problem(told, 500, advice))


def _plain(message: str) -> str:
    """Field names may be the client's own, and an unpaired surrogate has no UTF-8."""
    return message.encode("utf-8", "backslashreplace").decode()
