"""Values -> the answer on the wire, so that a stock client of any language reads it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as ET

from ..errors import AwsError
from .models import Service, Shape


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, before any HTTP library sees it. `code` is the AWS error code, empty on success."""

    status: int
    body: bytes
    content_type: str
    headers: dict[str, str] = field(default_factory=dict)
    code: str = ""


def result(service: Service, operation: Any, value: dict[str, Any], request_id: str) -> Answer:
    """A successful answer. A member that the model does not know is a bug of ours and raises KeyError."""
    shape = operation.output_shape
    if service.protocol == "rest-json":
        body = json.dumps(_json(shape, value)).encode() if shape is not None else b"{}"
        return Answer(operation.http.get("responseCode", 200), body, "application/json", _ids(request_id))
    root = ET.Element(f"{operation.name}Response", xmlns=service.namespace)
    if service.protocol == "ec2":
        ET.SubElement(root, "requestId").text = request_id
        if shape is not None:
            _xml_members(root, shape, value)
    else:
        if shape is not None:
            _xml_members(ET.SubElement(root, f"{operation.name}Result"), shape, value)
        ET.SubElement(ET.SubElement(root, "ResponseMetadata"), "RequestId").text = request_id
    return _xml(200, root, request_id)


def error(service: Service, problem: AwsError, request_id: str) -> Answer:
    """An error answer with the code, the message and the HTTP status that a real client would see."""
    status = problem.status or service.error_status(problem.code) or 400
    if service.protocol == "rest-json":
        headers = _ids(request_id) | {"x-amzn-ErrorType": problem.code}
        body = json.dumps({"message": problem.message, **problem.fields}).encode()
        return Answer(status, body, "application/json", headers, problem.code)
    if service.protocol == "ec2":
        root = ET.Element("Response")
        detail = ET.SubElement(ET.SubElement(root, "Errors"), "Error")
        request_tag = "RequestID"
    else:
        root = ET.Element("ErrorResponse", xmlns=service.namespace)
        detail = ET.SubElement(root, "Error")
        ET.SubElement(detail, "Type").text = "Sender" if status < 500 else "Receiver"
        request_tag = "RequestId"
    ET.SubElement(detail, "Code").text = problem.code
    ET.SubElement(detail, "Message").text = problem.message
    ET.SubElement(root, request_tag).text = request_id
    return _xml(status, root, request_id, problem.code)


def _ids(request_id: str) -> dict[str, str]:
    return {"x-amzn-RequestId": request_id}


def _xml(status: int, root: ET.Element, request_id: str, code: str = "") -> Answer:
    body = b'<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root)
    return Answer(status, body, "text/xml", _ids(request_id), code)


def _json(shape: Shape, value: Any) -> Any:
    kind = shape.type_name
    if kind == "structure":
        known = shape.members
        return {
            known[name].serialization.get("name", name): _json(known[name], item)
            for name, item in value.items()
            if item is not None
        }
    if kind == "list":
        return [_json(shape.member, item) for item in value]
    if kind == "map":
        return {key: _json(shape.value, item) for key, item in value.items()}
    if kind == "timestamp":
        return round(float(value), 3)
    return value


def _xml_members(parent: ET.Element, shape: Shape, value: dict[str, Any]) -> None:
    for name, item in value.items():
        member = shape.members[name]
        if item is not None:
            _xml_value(parent, member, item, str(member.serialization.get("name", name)))


def _xml_value(parent: ET.Element, shape: Shape, value: Any, tag: str) -> None:
    if shape.type_name == "list":
        item_tag = str(shape.member.serialization.get("name", "member"))
        flattened = shape.serialization.get("flattened")
        holder = parent if flattened else ET.SubElement(parent, tag)
        for item in value:
            _xml_value(holder, shape.member, item, tag if flattened else item_tag)
        return
    element = ET.SubElement(parent, tag)
    if shape.type_name == "structure":
        _xml_members(element, shape, value)
    elif shape.type_name == "timestamp":
        element.text = datetime.fromtimestamp(float(value), UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    elif shape.type_name == "boolean":
        element.text = "true" if value else "false"
    elif shape.type_name == "blob":
        element.text = base64.b64encode(value).decode()
    else:
        element.text = str(value)
