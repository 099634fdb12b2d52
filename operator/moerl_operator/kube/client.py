"""The KubeApi against a real API server, on the low-level client of the `kubernetes` package.

Only bytes and plain dicts pass here: the generated model classes drop fields that they do not know
and cannot leave out fields, which server-side apply lives by. The only importer of `kubernetes`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, Configuration

from moerl_operator.kube import wire
from moerl_operator.kube.api import FIELD_MANAGER, STATUS_FIELD_MANAGER, Kind, KubeApi, KubeError, Obj
from moerl_operator.kube.wire import Request, path_of

REQUEST_TIMEOUT = 15.0  # seconds, for everything but watches
CONNECT_TIMEOUT = 10.0
LIST_PAGE = 500
# The server sends a bookmark about once a minute; a stream silent for longer than this is dead.
WATCH_SILENCE = 70.0

STRICT = {"fieldValidation": "Strict"}

Observer = Callable[[str, str, int], None]
"""(verb, plural, HTTP status or 0) of every finished request: the metrics' way in."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the API server is and who we are: what another client needs to log in alike."""

    server: str
    ca_path: str | None
    verify: bool
    tls_server_name: str | None
    authorization: str | None  # the header's value, scheme included
    certificate_path: str | None
    private_key_path: str | None
    proxy: str | None


async def load_configuration(kubeconfig: str | None = None, context: str | None = None) -> Configuration:
    """The client configuration of a kubeconfig file, or of the pod we run in when none is given.

    Raises KubeError (status 0) in one line when neither is usable.
    """
    configuration = type.__call__(Configuration)  # a fresh one: the class hands out copies of a global default
    try:
        if kubeconfig is None:
            kube_config.load_incluster_config(client_configuration=configuration)
        elif not os.path.isfile(kubeconfig):  # noqa: ASYNC240 - one stat at start
            raise KubeError(0, "NoKubeconfig", f"no kubeconfig file at {kubeconfig}")
        else:
            await kube_config.load_kube_config(
                config_file=kubeconfig, context=context, client_configuration=configuration, persist_config=False
            )
    except kube_config.ConfigException as error:
        hint = "" if kubeconfig else "; outside a cluster give --kubeconfig"
        raise KubeError(0, "NoKubeconfig", f"{kubeconfig or 'in-cluster configuration'}: {error}{hint}") from None
    return configuration


async def load_connection(kubeconfig: str | None = None, context: str | None = None) -> Connection:
    """Fresh login data, read anew at every call: tokens of service accounts rotate."""
    configuration = await load_configuration(kubeconfig, context)
    return Connection(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        verify=configuration.verify_ssl,
        tls_server_name=configuration.tls_server_name,
        authorization=configuration.api_key.get("BearerToken"),
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy=configuration.proxy,
    )


@asynccontextmanager
async def connect(
    kubeconfig: Path | str | None = None,
    context: str | None = None,
    *,
    user_agent: str = "moerl-operator",
    observer: Observer | None = None,
) -> AsyncIterator[KubeApi]:
    """A KubeApi for the life of the `async with` block.

    Without a kubeconfig the service account of the pod is used. Raises KubeError when there is no usable
    configuration; the server itself is first asked by the first call.
    """
    path = os.path.expanduser(kubeconfig) if kubeconfig is not None else None  # noqa: ASYNC240
    client = KubeClient(
        await load_configuration(path, context),
        reload=lambda: load_configuration(path, context),
        user_agent=user_agent,
        observer=observer,
    )
    try:
        yield client
    finally:
        await client.close()


class KubeClient:
    """One API server; see KubeApi for the meaning of the calls."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        reload: Callable[[], Awaitable[Configuration]],
        user_agent: str,
        observer: Observer | None = None,
    ) -> None:
        self._reload = reload
        self._user_agent = user_agent
        self._observer = observer or (lambda verb, plural, status: None)
        self._login = asyncio.Lock()
        self._client = self._make(configuration)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    # --- the wire --------------------------------------------------------------------------------------

    async def _call(self, request: Request) -> Obj:
        response = await self._open(request)
        try:
            async with response:
                answer: Obj = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise KubeError(0, "NoAnswer", f"{request}: {error or type(error).__name__}") from None
        return answer

    async def _open(self, request: Request) -> aiohttp.ClientResponse:
        """Send; after a 401 log in afresh once, since certificates and tokens on disk are replaced under us."""
        client = self._client
        response = await self._send(client, request)
        if response.status == 401:
            response.release()
            await self._log_in_again(client)
            response = await self._send(self._client, request)
        if 200 <= response.status <= 299:
            return response
        try:
            async with response:
                text = await response.text(errors="replace")
        except (aiohttp.ClientError, TimeoutError):
            text = ""
        raise wire.error_of(request, response.status, response.reason or "", text)

    async def _send(self, client: ApiClient, request: Request) -> aiohttp.ClientResponse:
        try:
            response: aiohttp.ClientResponse = await client.call_api(
                request.path,
                request.method,
                query_params=[(key, value) for key, value in request.query.items() if value],
                header_params={"Content-Type": request.content_type, "Accept": request.accept},
                body=request.body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=_timeout(request),
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._observer(request.verb, request.kind.plural, 0)
            raise KubeError(0, "NoAnswer", f"{request}: {error or type(error).__name__}") from None
        self._observer(request.verb, request.kind.plural, response.status)
        return response

    def _make(self, configuration: Configuration) -> ApiClient:
        client = ApiClient(configuration)
        client.user_agent = self._user_agent
        return client

    async def _log_in_again(self, used: ApiClient) -> None:
        async with self._login:
            if self._client is used:  # else another request has done it meanwhile
                self._client = self._make(await self._reload())
                await used.close()

    # --- reading ---------------------------------------------------------------------------------------

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj | None:
        """The object, or None where there is none."""
        try:
            return await self._call(Request("get", kind, path_of(kind, namespace, name)))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        resource_version: str = "",
        timeout_seconds: int = 300,
    ) -> AsyncIterator[tuple[str, Obj]]:
        """Events until the server ends the stream; a silent or broken stream raises KubeError with status 0."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_seconds),
            "labelSelector": label_selector,
            "resourceVersion": resource_version,
        }
        request = Request("watch", kind, path_of(kind, namespace), query, stream_seconds=timeout_seconds)
        response = await self._open(request)
        try:
            async with response:
                while line := await response.content.readline():
                    yield wire.watch_event(line)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise KubeError(0, "WatchBroken", f"{request}: {error or type(error).__name__}") from None

    # --- writing ---------------------------------------------------------------------------------------

    async def create(self, kind: Kind, obj: Mapping[str, Any], *, dry_run: bool = False) -> Obj:
        """POST with strict field validation: an unknown field is refused, not pruned."""
        path = path_of(kind, wire.namespace_of(kind, obj))
        query = {**STRICT, "fieldManager": FIELD_MANAGER, "dryRun": "All" if dry_run else ""}
        return await self._call(Request("create", kind, path, query, "POST", wire.typed(kind, obj)))

    async def apply(
        self, kind: Kind, obj: Mapping[str, Any], *, field_manager: str = FIELD_MANAGER, dry_run: bool = False
    ) -> Obj:
        """Server-side apply with force and strict field validation."""
        request = _apply_request(kind, obj, "", field_manager)
        query = {**request.query, "dryRun": "All" if dry_run else ""}
        return await self._call(replace(request, query=query))

    async def apply_status(
        self, kind: Kind, obj: Mapping[str, Any], *, field_manager: str = STATUS_FIELD_MANAGER
    ) -> Obj:
        """Server-side apply of the status subresource."""
        return await self._call(_apply_request(kind, obj, "status", field_manager))

    async def patch(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        subresource: str = "",
    ) -> Obj:
        """A mapping is a merge patch, a sequence a JSON patch."""
        path = path_of(kind, namespace, name, subresource)
        query = {**STRICT, "fieldManager": FIELD_MANAGER}
        body, media = (dict(patch), wire.MERGE_PATCH) if isinstance(patch, Mapping) else (list(patch), wire.JSON_PATCH)
        return await self._call(Request("patch", kind, path, query, "PATCH", body, media))

    async def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        *,
        uid: str = "",
        propagation: str = "Background",
        grace_seconds: int | None = None,
    ) -> None:
        """Absence is success, and so is another object under the name when `uid` is given."""
        body: Obj = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            await self._call(Request("delete", kind, path_of(kind, namespace, name), {}, "DELETE", body))
        except KubeError as error:
            if error.status != 404 and not (uid and error.conflict):
                raise

    # Last, because in the class body the name hides the builtin that other signatures use.
    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> list[Obj]:
        """All objects, in pages of 500; a page token that has expired restarts the list without pages."""
        query = {"labelSelector": label_selector, "fieldSelector": field_selector, "limit": str(LIST_PAGE)}
        accept = wire.METADATA_LIST if metadata_only else wire.JSON
        items: list[Obj] = []
        while True:
            try:
                answer = await self._call(Request("list", kind, path_of(kind, namespace), query, accept=accept))
            except KubeError as error:
                if error.status != 410 or "continue" not in query:
                    raise
                items, query = [], {"labelSelector": label_selector, "fieldSelector": field_selector}
                continue
            items += [wire.typed(kind, item) for item in answer.get("items") or []]
            token = (answer.get("metadata") or {}).get("continue")
            if not token:
                return items
            query = {**query, "continue": token}


def _apply_request(kind: Kind, obj: Mapping[str, Any], subresource: str, field_manager: str) -> Request:
    path = path_of(kind, wire.namespace_of(kind, obj), obj["metadata"]["name"], subresource)
    query = {**STRICT, "force": "true", "fieldManager": field_manager}
    return Request("apply", kind, path, query, "PATCH", wire.typed(kind, obj), wire.APPLY)


def _timeout(request: Request) -> aiohttp.ClientTimeout:
    if request.stream_seconds:
        total = request.stream_seconds + 30
        return aiohttp.ClientTimeout(total=total, sock_connect=CONNECT_TIMEOUT, sock_read=WATCH_SILENCE)
    return aiohttp.ClientTimeout(total=REQUEST_TIMEOUT, sock_connect=CONNECT_TIMEOUT)
