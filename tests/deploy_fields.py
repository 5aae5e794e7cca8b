"""The fields of Kubernetes and KubeRay objects that the manifests of `deploy/` may have, as a JSON schema.

Written from the references of KubeRay (https://github.com/ray-project/kuberay/blob/master/docs/reference/api.md) and of
Kubernetes (https://kubernetes.io/docs/reference/kubernetes-api/). It has the fields that a manifest is likely to use, and
refuses every other one, so that a misspelled field is found.
"""

from __future__ import annotations

from typing import Any

TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"}


def each(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


def structure(*required: str, **fields: Any) -> dict[str, Any]:
    """Return the schema of an object with these fields and no others."""
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


def kind(version: str, name: str, *required: str, **fields: Any) -> dict[str, Any]:
    """Return the schema of an object that `kubectl apply` accepts."""
    metadata = structure("name", name=NAME, namespace=NAME, labels=TEXTS, annotations=TEXTS)
    named = {"apiVersion": {"const": version}, "kind": {"const": name}, "metadata": metadata}
    return structure("apiVersion", "kind", "metadata", *required, **named, **fields)


QUANTITIES = {"type": "object", "additionalProperties": QUANTITY}
RESOURCES = structure(requests=QUANTITIES, limits=QUANTITIES)
SECCOMP = structure("type", type={"enum": ["RuntimeDefault", "Localhost", "Unconfined"]}, localhostProfile=TEXT)
VARIABLE = structure(
    "name",
    name=TEXT,
    value=TEXT,
    valueFrom=structure(
        secretKeyRef=structure("name", "key", name=NAME, key=TEXT, optional=FLAG),
        configMapKeyRef=structure("name", "key", name=NAME, key=TEXT, optional=FLAG),
        fieldRef=structure("fieldPath", apiVersion=TEXT, fieldPath=TEXT),
        resourceFieldRef=structure("resource", containerName=TEXT, resource=TEXT, divisor=TEXT),
    ),
)
CONTAINER = structure(
    "name",
    "image",
    name=NAME,
    image=TEXT,
    imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    command=each(TEXT),
    args=each(TEXT),
    workingDir=TEXT,
    env=each(VARIABLE),
    ports=each(
        structure(
            "containerPort",
            name={"type": "string", "maxLength": 15},
            containerPort={"type": "integer", "minimum": 1, "maximum": 65535},
            protocol={"enum": ["TCP", "UDP", "SCTP"]},
        )
    ),
    resources=RESOURCES,
    volumeMounts=each(structure("name", "mountPath", name=NAME, mountPath=TEXT, readOnly=FLAG, subPath=TEXT)),
    securityContext=structure(
        allowPrivilegeEscalation=FLAG,
        capabilities=structure(add=each(TEXT), drop=each(TEXT)),
        privileged=FLAG,
        readOnlyRootFilesystem=FLAG,
        runAsGroup=NUMBER,
        runAsNonRoot=FLAG,
        runAsUser=NUMBER,
        seccompProfile=SECCOMP,
    ),
)
VOLUME = structure(
    "name",
    name=NAME,
    configMap=structure("name", name=NAME, defaultMode=NUMBER, optional=FLAG),
    emptyDir=structure(medium={"enum": ["", "Memory"]}, sizeLimit=QUANTITY),
    persistentVolumeClaim=structure("claimName", claimName=NAME, readOnly=FLAG),
    secret=structure("secretName", secretName=NAME, defaultMode=NUMBER, optional=FLAG),
)
POD = structure(
    "spec",
    metadata=structure(labels=TEXTS, annotations=TEXTS),
    spec=structure(
        "containers",
        automountServiceAccountToken=FLAG,
        containers={**each(CONTAINER), "minItems": 1},
        imagePullSecrets=each(structure("name", name=NAME)),
        initContainers=each(CONTAINER),
        nodeSelector=TEXTS,
        priorityClassName=TEXT,
        restartPolicy={"enum": ["Always", "OnFailure", "Never"]},
        securityContext=structure(
            fsGroup=NUMBER,
            fsGroupChangePolicy={"enum": ["OnRootMismatch", "Always"]},
            runAsGroup=NUMBER,
            runAsNonRoot=FLAG,
            runAsUser=NUMBER,
            seccompProfile=SECCOMP,
            supplementalGroups=each(NUMBER),
        ),
        serviceAccountName=NAME,
        terminationGracePeriodSeconds=NUMBER,
        tolerations=each(structure(effect=TEXT, key=TEXT, operator=TEXT, tolerationSeconds=NUMBER, value=TEXT)),
        volumes=each(VOLUME),
    ),
)
RAY_CLUSTER = structure(
    "headGroupSpec",
    rayVersion=TEXT,
    enableInTreeAutoscaling=FLAG,
    suspend=FLAG,
    headGroupSpec=structure(
        "template",
        rayStartParams=TEXTS,
        serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
        enableIngress=FLAG,
        template=POD,
    ),
    workerGroupSpecs=each(
        structure(
            "groupName",
            "template",
            groupName=NAME,
            replicas=NUMBER,
            minReplicas=NUMBER,
            maxReplicas=NUMBER,
            numOfHosts=NUMBER,
            idleTimeoutSeconds=NUMBER,
            suspend=FLAG,
            rayStartParams=TEXTS,
            template=POD,
        )
    ),
)
KINDS = {
    "ConfigMap": kind("v1", "ConfigMap", data=TEXTS, immutable=FLAG),
    "PersistentVolumeClaim": kind(
        "v1",
        "PersistentVolumeClaim",
        "spec",
        spec=structure(
            "accessModes",
            "resources",
            accessModes=each({"enum": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]}),
            resources=RESOURCES,
            storageClassName=TEXT,
            volumeMode={"enum": ["Filesystem", "Block"]},
            volumeName=TEXT,
        ),
    ),
    "Deployment": kind(
        "apps/v1",
        "Deployment",
        "spec",
        spec=structure(
            "selector",
            "template",
            replicas=NUMBER,
            selector=structure(matchLabels=TEXTS),
            template=POD,
            minReadySeconds=NUMBER,
            progressDeadlineSeconds=NUMBER,
            revisionHistoryLimit=NUMBER,
        ),
    ),
    "RayJob": kind(
        "ray.io/v1",
        "RayJob",
        "spec",
        spec=structure(
            "rayClusterSpec",
            activeDeadlineSeconds=NUMBER,
            backoffLimit=NUMBER,
            entrypoint=TEXT,
            entrypointNumCpus={"type": "number"},
            entrypointNumGpus={"type": "number"},
            entrypointResources=TEXT,
            jobId=TEXT,
            rayClusterSpec=RAY_CLUSTER,
            runtimeEnvYAML=TEXT,
            shutdownAfterJobFinishes=FLAG,
            submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
            submitterPodTemplate=POD,
            suspend=FLAG,
            ttlSecondsAfterFinished=NUMBER,
        ),
    ),
}
