"""EC2 launch templates: versions, default version, tags, idempotency by ClientToken."""

from __future__ import annotations

import json
import re
from typing import Any

from .clock import Clock
from .errors import AwsError
from .launch_rules import Problem, launch_problems, syntax_problems, tag_problems
from .world import ACCOUNT, LaunchTemplate, TemplateVersion, World, new_id

Params = dict[str, Any]
_CREATOR = f"arn:aws:iam::{ACCOUNT}:user/test"
_TEMPLATE_NAME = re.compile(r"[a-zA-Z0-9().\-/_]{3,128}")


class LaunchTemplates:
    """The launch-template operations of EC2."""

    def __init__(self, world: World, clock: Clock) -> None:
        self._world = world
        self._clock = clock

    def create_launch_template(self, params: Params) -> Params:
        """A template with version 1; what would not launch comes back as a warning, as EC2 does it."""
        name, token = params["LaunchTemplateName"], params.get("ClientToken", "")
        if not _TEMPLATE_NAME.fullmatch(name):
            raise AwsError("InvalidLaunchTemplateName.MalformedException", f"Invalid launch template name: {name}")
        sent = json.loads(json.dumps(params, default=str))
        for template in self._world.templates.values():
            if token and template.token == token:
                if template.request == sent:
                    return {"LaunchTemplate": self._describe_template(template)}
                text = "The provided client token was used with different parameters."
                raise AwsError("IdempotentParameterMismatch", text)
        if any(template.name == name for template in self._world.templates.values()):
            raise AwsError(
                "InvalidLaunchTemplateName.AlreadyExistsException", f"Launch template name already in use: {name}"
            )
        data = params["LaunchTemplateData"]
        _refuse(next(syntax_problems(data), None))
        tags = self._own_tags(params)
        if params.get("DryRun"):
            raise AwsError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", status=412)
        stamp = self._clock.timestamp()
        version = TemplateVersion(
            number=1, description=params.get("VersionDescription", ""), data=data, created_at=stamp
        )
        template = LaunchTemplate(
            id=new_id("lt"), name=name, token=token, request=sent, created_at=stamp, versions=[version], tags=tags
        )
        self._world.templates[template.id] = template
        return {"LaunchTemplate": self._describe_template(template)} | _warning(data)

    @staticmethod
    def _own_tags(params: Params) -> dict[str, str]:
        tags: dict[str, str] = {}
        for specification in params.get("TagSpecifications", []):
            kind = specification.get("ResourceType")
            if kind != "launch-template":
                text = f"'{kind}' is not a valid taggable resource type for this operation."
                raise AwsError("InvalidParameterValue", text)
            _refuse(next(tag_problems(specification.get("Tags", [])), None))
            tags.update({tag["Key"]: tag.get("Value", "") for tag in specification.get("Tags", [])})
        return tags

    def create_launch_template_version(self, params: Params) -> Params:
        """A further version, on top of a source version where one is named."""
        template = self._find(params)
        base: Params = {}
        if "SourceVersion" in params:
            base = self._version(template, params["SourceVersion"]).data
        data = base | params["LaunchTemplateData"]
        _refuse(next(syntax_problems(data), None))
        number = max(version.number for version in template.versions) + 1
        description = params.get("VersionDescription", "")
        version = TemplateVersion(number=number, description=description, data=data, created_at=self._clock.timestamp())
        template.versions.append(version)
        return {"LaunchTemplateVersion": self._describe_version(template, version)} | _warning(data)

    def describe_launch_templates(self, params: Params) -> Params:
        """Templates by id, name or filter, paged."""
        ids, names = params.get("LaunchTemplateIds", []), params.get("LaunchTemplateNames", [])
        for key in ids:
            if key not in self._world.templates:
                raise _no_template(key, by_id=True)
        known = {template.name for template in self._world.templates.values()}
        for key in names:
            if key not in known:
                raise _no_template(key, by_id=False)
        found = [
            template
            for template in self._world.templates.values()
            if (not ids or template.id in ids) and (not names or template.name in names)
        ]
        for entry in params.get("Filters", []):
            found = [template for template in found if _filter(template, entry)]
        page, token = page_of(found, params, default=200)
        return {"LaunchTemplates": [self._describe_template(template) for template in page], "NextToken": token}

    def describe_launch_template_versions(self, params: Params) -> Params:
        """Versions of one template."""
        template = self._find(params)
        wanted = params.get("Versions")
        versions = [self._version(template, word) for word in wanted] if wanted else template.versions
        return {"LaunchTemplateVersions": [self._describe_version(template, version) for version in versions]}

    def modify_launch_template(self, params: Params) -> Params:
        """Sets the default version."""
        template = self._find(params)
        if "DefaultVersion" in params:
            template.default = self._version(template, params["DefaultVersion"]).number
        return {"LaunchTemplate": self._describe_template(template)}

    def delete_launch_template(self, params: Params) -> Params:
        """Removes a template with all its versions. Node groups keep the copy that EKS made."""
        template = self._find(params)
        if params.get("DryRun"):
            raise AwsError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", status=412)
        del self._world.templates[template.id]
        return {"LaunchTemplate": self._describe_template(template)}

    def _find(self, params: Params) -> LaunchTemplate:
        key, name = params.get("LaunchTemplateId"), params.get("LaunchTemplateName")
        if (key is None) == (name is None):
            raise AwsError("MissingParameter", "Either a launch template id or a launch template name is required.")
        for template in self._world.templates.values():
            if key == template.id or (name is not None and name == template.name):
                return template
        raise _no_template(key or name or "", by_id=key is not None)

    @staticmethod
    def _version(template: LaunchTemplate, word: str) -> TemplateVersion:
        latest = max(version.number for version in template.versions)
        text = {"$Latest": str(latest), "$Default": str(template.default)}.get(word, word)
        for version in template.versions:
            if str(version.number) == text:
                return version
        message = f"Could not find the specified version {word} for the launch template with ID {template.id}."
        raise AwsError("InvalidLaunchTemplateId.VersionNotFound", message)

    def _describe_template(self, template: LaunchTemplate) -> Params:
        return {
            "LaunchTemplateId": template.id,
            "LaunchTemplateName": template.name,
            "CreateTime": template.created_at,
            "CreatedBy": _CREATOR,
            "DefaultVersionNumber": template.default,
            "LatestVersionNumber": max(version.number for version in template.versions),
            "Tags": [{"Key": key, "Value": value} for key, value in sorted(template.tags.items())],
        }

    def _describe_version(self, template: LaunchTemplate, version: TemplateVersion) -> Params:
        return {
            "LaunchTemplateId": template.id,
            "LaunchTemplateName": template.name,
            "VersionNumber": version.number,
            "VersionDescription": version.description or None,
            "CreateTime": version.created_at,
            "CreatedBy": _CREATOR,
            "DefaultVersion": version.number == template.default,
            "LaunchTemplateData": version.data,
        }


def _no_template(key: str, *, by_id: bool) -> AwsError:
    if by_id and not re.fullmatch(r"lt-[0-9a-f]{8,17}", key):
        return AwsError("InvalidLaunchTemplateId.Malformed", f"The launch template ID '{key}' is malformed")
    kind = "Id" if by_id else "Name"
    text = f"The specified launch template, with template {'ID' if by_id else 'name'} {key}, does not exist."
    return AwsError(f"InvalidLaunchTemplate{kind}.NotFoundException", text)


def _refuse(problem: Problem | None) -> None:
    if problem is not None:
        raise AwsError(problem.code, problem.message)


def _warning(data: Params) -> Params:
    types = [data["InstanceType"]] if "InstanceType" in data else []
    errors = [{"Code": problem.code, "Message": problem.message} for problem in launch_problems(data, types)]
    return {"Warning": {"Errors": errors}} if errors else {}


def _filter(template: LaunchTemplate, entry: Params) -> bool:
    name, values = entry.get("Name", ""), entry.get("Values", [])
    if name == "launch-template-name":
        return template.name in values
    if name == "tag-key":
        return any(key in values for key in template.tags)
    if name.startswith("tag:"):
        return template.tags.get(name[4:]) in values
    raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")


def page_of(items: list[Any], params: Params, *, default: int = 1000) -> tuple[list[Any], str | None]:
    """One page of a list and the token of the next."""
    size, token = params.get("MaxResults", default), params.get("NextToken", "0")
    if size < 1:
        raise AwsError("InvalidParameterValue", f"Value ( {size} ) for parameter maxResults is invalid.")
    if not token.isdecimal():
        raise AwsError("InvalidNextToken", "The nextToken value is not valid.")
    start = int(token)
    return items[start : start + size], str(start + size) if start + size < len(items) else None
