"""On-Demand prices by the hour, for the cost shown in the status. An estimate with a date, never a bill.

Linux, us-east-1, read from Karpenter's generated price list (zz_generated.pricing_aws.go) of 2026-07-20. Prices of
other regions and of Spot differ; p5e.48xlarge is not offered in us-east-1 and has none.
"""

from __future__ import annotations

AS_OF = "2026-07-20"
REGION = "us-east-1"
SOURCE = "karpenter-provider-aws zz_generated.pricing_aws.go"

USD_PER_HOUR = {
    "p5en.48xlarge": 63.296,
    "p5.48xlarge": 55.04,
    "p5.4xlarge": 6.88,
    "p6-b200.48xlarge": 113.9328,
    "p6-b300.48xlarge": 142.416,
    "p4d.24xlarge": 21.9576,
    "p4de.24xlarge": 27.4471,
    "g6e.48xlarge": 30.1312,
    "g7e.48xlarge": 33.1443,
    "r7i.8xlarge": 2.1168,
    "r7i.16xlarge": 4.2336,
    "r7i.24xlarge": 6.3504,
    "r7i.48xlarge": 12.7008,
    "r8i.48xlarge": 13.3363,
    "x2iedn.32xlarge": 26.676,
    "x2idn.32xlarge": 13.338,
    "c7i.8xlarge": 1.428,
    "c7i.16xlarge": 2.856,
    "c7i.24xlarge": 4.284,
    "c7i.48xlarge": 8.568,
    "c8i.48xlarge": 8.9962,
    "i4i.32xlarge": 10.9824,
    "local": 0.0,
}


def usd_per_hour(instance_type: str) -> float | None:
    """Price of one On-Demand instance, None where the list has none."""
    return USD_PER_HOUR.get(instance_type)
