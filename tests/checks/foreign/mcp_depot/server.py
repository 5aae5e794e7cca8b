"""A Model Context Protocol server that keeps parcels: `python server.py` speaks over its standard streams."""

import json
import os
from typing import Literal

from mcp.server.mcpserver import MCPServer

depot = MCPServer("depot")
PARCELS = json.loads(os.environ.get("PARCELS", "{}"))
HELD = []


@depot.tool()
def list_parcels() -> list[str]:
    """Numbers of all parcels."""
    return list(PARCELS)


@depot.tool()
def get_parcel(parcel_number: str) -> dict[str, str | int]:
    """Weight, zone and customer of a parcel."""
    if parcel_number not in PARCELS:
        raise ValueError(f"no parcel {parcel_number}")
    return PARCELS[parcel_number]


@depot.tool()
def customer_parcels(customer: str) -> list[str]:
    """Parcels of a customer."""
    found = [number for number, parcel in PARCELS.items() if parcel["customer"] == customer]
    if not found:
        raise ValueError(f"no customer {customer}")
    return found


@depot.tool()
def quote(zone: str, kilograms: int, speed: Literal["standard", "express"]) -> float:
    """The price of a parcel."""
    if zone not in {parcel["zone"] for parcel in PARCELS.values()}:
        raise ValueError(f"unknown zone {zone}")
    return kilograms * (2.5 if speed == "express" else 1.0)


@depot.tool()
def hold(parcel_number: str, until: str) -> str:
    """Keep a parcel until a date, YYYY-MM-DD."""
    if parcel_number not in PARCELS:
        raise ValueError(f"no parcel {parcel_number}")
    if len(until) != 10:
        raise ValueError(f"until must be a date, YYYY-MM-DD, not {until}")
    HELD.append(parcel_number)
    return f"held, {len(HELD)} in all"


if __name__ == "__main__":
    depot.run()
