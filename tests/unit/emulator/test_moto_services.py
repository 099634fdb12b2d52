"""S3 and SQS through the same port: bytes, names and sizes come back as they went in."""

from __future__ import annotations

import gzip
import hashlib
import os
import urllib.request

import pytest
from botocore.exceptions import ClientError

from support.emulator import Emulator

BUCKET = "moerl"


def test_the_bucket_is_there_and_empty_after_a_reset(emulator: Emulator) -> None:
    s3 = emulator.client("s3")
    assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == [BUCKET]
    s3.put_object(Bucket=BUCKET, Key="x", Body=b"x")
    emulator.reset()
    assert "Contents" not in s3.list_objects_v2(Bucket=BUCKET)


@pytest.mark.parametrize("key", ["a", "a b+c%20d/é/=&?#", "x//y", "../up", "a/./b", "~!@$^*()"])
def test_keys_of_any_spelling(emulator: Emulator, key: str) -> None:
    s3 = emulator.client("s3")
    s3.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
    assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == key.encode()
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKET)["Contents"]] == [key]


def test_large_bodies_pass_in_parts_and_ranges(emulator: Emulator) -> None:
    s3 = emulator.client("s3")
    data = os.urandom(6 << 20)
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key="big")["UploadId"]
    parts = []
    for number, piece in enumerate((data[: 5 << 20], data[5 << 20 :]), 1):
        answer = s3.upload_part(Bucket=BUCKET, Key="big", UploadId=upload, PartNumber=number, Body=piece)
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
    s3.complete_multipart_upload(Bucket=BUCKET, Key="big", UploadId=upload, MultipartUpload={"Parts": parts})
    assert s3.head_object(Bucket=BUCKET, Key="big")["ContentLength"] == len(data)
    whole = s3.get_object(Bucket=BUCKET, Key="big")["Body"].read()
    assert hashlib.sha256(whole).digest() == hashlib.sha256(data).digest()
    piece = s3.get_object(Bucket=BUCKET, Key="big", Range="bytes=5242870-5242890")
    assert piece["Body"].read() == data[5242870:5242891]
    assert piece["ResponseMetadata"]["HTTPStatusCode"] == 206


def test_an_object_that_is_packed_stays_packed(emulator: Emulator) -> None:
    s3 = emulator.client("s3")
    packed = gzip.compress(b"text" * 1000)
    s3.put_object(Bucket=BUCKET, Key="x.gz", Body=packed, ContentEncoding="gzip", Metadata={"step": "7"})
    found = s3.get_object(Bucket=BUCKET, Key="x.gz")
    assert found["Body"].read() == packed
    assert (found["ContentEncoding"], found["Metadata"]) == ("gzip", {"step": "7"})


def test_conditional_writes_protect_a_marker(emulator: Emulator) -> None:
    s3 = emulator.client("s3")
    s3.put_object(Bucket=BUCKET, Key="COMPLETE", Body=b"1", IfNoneMatch="*")
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket=BUCKET, Key="COMPLETE", Body=b"2", IfNoneMatch="*")
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
    with pytest.raises(ClientError) as error:
        s3.head_object(Bucket=BUCKET, Key="nothing")
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404


def test_a_signed_link_needs_no_header(emulator: Emulator) -> None:
    s3 = emulator.client("s3")
    s3.put_object(Bucket=BUCKET, Key="x", Body=b"linked")
    link = s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "x"})
    with urllib.request.urlopen(link) as answer:
        assert answer.read() == b"linked"


def test_a_queue_delivers_through_the_address_it_names(emulator: Emulator) -> None:
    sqs = emulator.client("sqs")
    url = sqs.create_queue(QueueName="interruptions")["QueueUrl"]
    assert url == f"{emulator.url}/111122223333/interruptions"
    sqs.send_message(QueueUrl=url, MessageBody="spot")
    assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "spot"
