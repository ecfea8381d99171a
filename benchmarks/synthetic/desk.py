"""Makes the traffic of a service desk, with tool calls and their results; see `make_desk`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

__all__ = ["make_desk"]

Row = dict[str, Any]

_MATERIAL = Path(__file__).parent / "material" / "desk.toml"
_DESK = "desk"
_SESSIONS, _CUSTOMERS = 72, 54


class _Customer(NamedTuple):
    name: str
    id: str
    email: str


class _Desk:
    """The desk's sessions, and what is asked about them."""

    def __init__(self) -> None:
        self._material: Row = tomllib.loads(_MATERIAL.read_text(encoding="utf-8"))
        self._rng = Random("remora desk")
        self.messages: list[Row] = []
        self.questions: list[Row] = []
        self._session = ""
        self._at = datetime(2025, 3, 3, 8, tzinfo=UTC)
        self._calls = 0

    def _any(self, kind: str) -> Any:
        return self._rng.choice(self._material[kind])

    # -- messages ---------------------------------------------------------------------------

    def _say(self, role: str, content: str | None, **more: Any) -> str:
        number = sum(one["session"] == self._session for one in self.messages[-40:])
        key = f"{self._session}:{number}"
        self._at += timedelta(seconds=self._rng.randint(8, 50))
        head = {"user": _DESK, "session": self._session, "timestamp": self._at.isoformat()}
        self.messages.append({**head, "key": key, "role": role, "content": content, **more})
        return key

    def _call(self, name: str, arguments: Row, result: Any) -> tuple[str, str]:
        """A tool's call and result: their keys."""
        self._calls += 1
        id_ = f"call_{self._calls % 90}"  # as some servers do it, ids repeat
        function = {"name": name, "arguments": json.dumps(arguments)}
        calls = [{"id": id_, "type": "function", "function": function}]
        asked = self._say("assistant", None, tool_calls=calls)
        text = result if isinstance(result, str) else json.dumps(result)
        return asked, self._say("tool", text, tool_call_id=id_)

    def _ask(self, category: str, question: str, *evidence: str) -> None:
        number = len(self.questions) + 1
        row = {"type": "qa", "conv": _DESK, "qid": f"desk-{number}", "category": category}
        self.questions.append({**row, "question": question, "evidence": list(evidence)})

    # -- records ----------------------------------------------------------------------------

    def _code(self) -> str:
        return "".join(self._rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=5))

    def _address(self) -> Row:
        rng = self._rng
        street = f"{rng.randint(2, 180)} {self._any('streets')}"
        zip_code = str(rng.randint(10, 98) * 117)
        return {"street": street, "city": self._any("cities"), "zip": zip_code}

    def _order(self, customer: _Customer, thing: str) -> Row:
        rng = self._rng
        price = rng.randint(900, 29_000) / 100
        return {
            "order_id": f"R-{rng.randint(10_000, 99_999)}",
            "customer_id": customer.id,
            "status": self._any("states"),
            "ship_to": self._address(),
            "items": [
                {"sku": f"SK{rng.randint(1_000, 9_999)}", "name": thing, "price": price, "qty": 1},
                {"sku": f"SK{rng.randint(1_000, 9_999)}", "name": "gift wrap", "price": 2.5},
            ],
            "tracking": {"carrier": self._any("carriers"), "number": str(rng.randrange(10**10))},
            "paid_with": {"method": self._any("methods"), "amount": price + 2.5},
        }

    def _booking(self, customer: _Customer) -> Row:
        rng, day = self._rng, self._at.date() + timedelta(self._rng.randint(10, 90))
        return {
            "booking": self._code(),
            "guest": {"customer_id": customer.id, "adults": rng.randint(1, 3)},
            "hotel": self._any("hotels"),
            "room": {"type": self._any("rooms"), "board": self._any("board")},
            "check_in": day.isoformat(),
            "check_out": (day + timedelta(rng.randint(1, 9))).isoformat(),
            "total_eur": rng.randint(80, 1_900),
            "policy": "Free of charge until seven days before arrival, then one night is charged.",
        }

    def _ticket(self, customer: _Customer) -> Row:
        rng = self._rng
        part, fault = self._any("parts"), self._any("faults")
        return {
            "ticket": f"TCK-{rng.randint(100, 999)}-{rng.randint(10, 99)}",
            "opened_by": customer.id,
            "title": f"{part} {fault}",
            "priority": self._any("priorities"),
            "assignee": self._any("engineers"),
            "visit": (self._at.date() + timedelta(rng.randint(1, 12))).isoformat(),
            "history": [{"at": self._at.isoformat(), "by": "system", "note": "created"}] * 3,
        }

    # -- sessions ---------------------------------------------------------------------------

    def make(self) -> list[Row]:
        rng = self._rng
        material = self._material
        every = [f"{one} {two}" for one in material["first"] for two in material["last"]]
        names = rng.sample(every, _CUSTOMERS)
        customers = [
            _Customer(
                name,
                f"{name.replace(' ', '_').lower()}_{rng.randint(1_000, 9_999)}",
                f"{name.replace(' ', '.').lower()}{rng.randint(2, 99)}@example.org",
            )
            for name in names
        ]
        order = customers + rng.sample(customers, _SESSIONS - len(customers))
        asides = material["aside"]
        aside_of = dict(zip(rng.sample(range(_SESSIONS), len(asides)), asides, strict=True))
        kinds = (self._talk_of_order, self._talk_of_booking, self._talk_of_ticket)
        for number, customer in enumerate(order):
            self._session = f"desk-{number}"
            self._at += timedelta(hours=rng.randint(1, 30))
            self._say("user", self._any("greetings"))
            self._say("assistant", self._any("prompts"))
            self._say("user", f"My name is {customer.name}, and my e-mail is {customer.email}.")
            profile = {
                "customer_id": customer.id,
                "name": dict(zip(("first", "last"), customer.name.split(), strict=True)),
                "email": customer.email,
                "loyalty": {"tier": self._any("tiers"), "points": 7 * number},
                "phone": f"+31 6 {rng.randint(10**7, 10**8 - 1)}",
            }
            self._call("find_customer", {"email": customer.email}, customer.id)
            _, known = self._call("get_customer", {"customer_id": customer.id}, profile)
            if number % 3 == 0 and order.count(customer) == 1:
                self._ask("person", f"What is the phone number of {customer.name}?", known)
            self._say("assistant", f"Thank you, {customer.name.split()[0]}. What can I do for you?")
            if number in aside_of:
                said, asked = aside_of[number]["say"], aside_of[number]["ask"]
                text = f"One thing before that: {said}" if rng.random() < 0.5 else said
                self._ask("said", asked.replace("{n}", customer.name), self._say("user", text))
                self._say("assistant", "I have made a note of that.")
            kinds[number % len(kinds)](number // len(kinds), customer)
            self._say("user", self._any("thanks"))
        return [*self.messages, *self.questions]

    def _talk_of_order(self, number: int, customer: _Customer) -> None:
        rng = self._rng
        thing = self._any("things")
        order = self._order(customer, thing)
        id_, arguments = order["order_id"], {"order_id": order["order_id"]}
        self._say("user", rng.choice((f"It is about {id_}.", f"Where is my {thing}? Order {id_}.")))
        _, found = self._call("get_order", arguments, order)
        self._say("assistant", f"Your {thing} is {order['status']}. Do you need anything else?")
        if number % 3 == 0:
            self._ask("result", f"Which carrier has order {id_}, and what is the number?", found)
        elif number % 3 == 1:
            self._ask("result", f"How much did {customer.name} pay for the {thing}?", found)
        else:
            moved = self._address()
            self._say("user", f"Send it to {moved['street']} in {moved['city']} instead, please.")
            changed = {**order, "ship_to": moved}
            arguments = {**arguments, "ship_to": moved}
            called, result = self._call("change_address", arguments, changed)
            self._say("assistant", "Done. Is there anything else?")
            self._ask("correction", f"To which address does order {id_} go now?", result)
            self._ask("call", f"Did we change the address of order {id_}?", called, result)

    def _talk_of_booking(self, number: int, customer: _Customer) -> None:
        rng = self._rng
        booking = self._booking(customer)
        code = booking["booking"]
        self._say("user", f"I would like to know about my stay at {booking['hotel']}.")
        offers = [self._booking(customer) for _ in range(rng.randint(4, 9))]
        rooms = [{"hotel": one["hotel"], **one["room"], "eur": one["total_eur"]} for one in offers]
        self._call("search_rooms", {"city": self._any("cities")}, rooms)
        self._say("assistant", "Do you have the code of the booking?")
        self._say("user", f"Yes: {code}.")
        _, found = self._call("get_booking", {"booking": code}, booking)
        self._say("assistant", f"You have a {booking['room']['type']} at {booking['hotel']}.")
        if number % 3 == 0:
            self._ask("result", f"Which board does booking {code} have, and until when?", found)
        elif number % 3 == 1:
            hotel = booking["hotel"]
            self._ask("result", f"When does {customer.name} arrive at {hotel}?", found)
        else:
            self._say("user", "Then cancel it, please. We cannot travel.")
            told = {"booking": code, "status": "cancelled", "refund_eur": booking["total_eur"] - 20}
            called, result = self._call("cancel_booking", {"booking": code}, told)
            self._say("assistant", "It is cancelled. You will have the refund within a week.")
            asked = f"Was booking {code} cancelled, and what was paid back?"
            self._ask("call", asked, called, result)

    def _talk_of_ticket(self, number: int, customer: _Customer) -> None:
        rng = self._rng
        ticket = self._ticket(customer)
        id_ = ticket["ticket"]
        self._say("user", f"The {ticket['title']}. Could somebody look at it?")
        parts = self._material["parts"]
        manual = " ".join(f"{n}. Check the {part}, and restart it." for n, part in enumerate(parts))
        self._call("search_manual", {"query": ticket["title"]}, f"{ticket['title']}: {manual}")
        self._say("assistant", "Please restart it once. Does that help?")
        self._say("user", rng.choice(("No, it does not.", "I tried that already.")))
        called, opened = self._call("open_ticket", {"title": ticket["title"]}, ticket)
        self._say("assistant", f"I have opened {id_} for you.")
        if number % 2:
            self._ask("result", f"Who takes care of ticket {id_}?", opened)
        else:
            about = ticket["title"].split()[0]
            self._ask("result", f"When does the engineer visit {customer.name}?", opened)
            asked = f"Which ticket did we open for {customer.name}'s {about}?"
            self._ask("call", asked, opened, called)


def make_desk() -> Sequence[Row]:
    """Messages and questions of one desk, as dicts of docs/reference/replay-format.md.

    Customers talk with an agent in 72 sessions. It looks up customers, orders, bookings and
    tickets, searches, and changes, cancels and opens them. The questions, by category:

    * ``result``: what a tool's result says, asked by number, or by the customer's name.
    * ``person``: what the customer's record says.
    * ``correction``: what holds after a change; the evidence is the newest result.
    * ``call``: what the agent did; the evidence is the call and its result.
    * ``said``: what a customer said in passing, and no tool.
    """
    return _Desk().make()
