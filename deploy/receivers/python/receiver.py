#!/usr/bin/env python3
"""Receives Makegood's webhooks, and hands goods out in one transaction with the note that it did. Python 3.9 and newer,
standard library alone.

    RECEIVER_SECRETS=secrets.txt RECEIVER_DATABASE=game.sqlite RECEIVER_PORT=8088 python3 receiver.py

RECEIVER_SECRETS is a file with a secret (whsec_…) a line: one, or two while a secret is changed. Each request reads the
file anew. RECEIVER_DATABASE is an SQLite file; put your own tables beside `webhook_events` and `webhook_cursors`, and your
own work in the place of `hand_out`. The receiver listens on 127.0.0.1, or on RECEIVER_HOST: TLS ends at your gateway.
"""

import base64
import binascii
import hashlib
import hmac
import json
import logging
import os
import re
import sqlite3
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOLERANCE_SECONDS = 300
BODY_BYTES_MAX = 1 << 20
DATABASE_WAIT_SECONDS = 3  # less than the endpoint's time limit, so that Makegood reads the 500
SIGNS = {"purchase.granted": 1, "purchase.reinstated": 1, "order.paid": 1, "purchase.revoked": -1}
TABLES = """
create table if not exists webhook_events (id text primary key, user_id text, at text not null) without rowid;
create table if not exists webhook_cursors (endpoint text primary key, place integer not null, number integer not null);
create table if not exists goods (user_id text, item text, amount integer not null, primary key (user_id, item));
"""


class Refused(Exception):
    """The request is answered with this status, and nothing of it is kept."""

    def __init__(self, status, why):
        super().__init__(why)
        self.status = status


def read_secrets(path):
    """The secrets of the file, decoded."""
    with open(path, encoding="ascii") as file:
        lines = [line.strip() for line in file if line.strip()]
    secrets = [base64.b64decode(line.removeprefix("whsec_"), validate=True) for line in lines]
    if not lines or not all(line.startswith("whsec_") and 24 <= len(s) <= 64 for line, s in zip(lines, secrets)):
        raise ValueError(f"{path}: each line must be whsec_ and the base64 of 24 to 64 bytes")
    return secrets


def verify(headers, body, secrets, now):
    """Standard Webhooks: one of the signatures is by one of the secrets, over exactly these bytes, and was made just now."""
    event_id = headers.get("webhook-id") or ""
    stamp = headers.get("webhook-timestamp") or ""
    if not event_id or not re.fullmatch(r"[0-9]{1,12}", stamp):
        raise Refused(401, "webhook-id or webhook-timestamp is missing")
    if abs(now - int(stamp)) > TOLERANCE_SECONDS:
        raise Refused(401, "webhook-timestamp is more than five minutes from this clock")
    signed = f"{event_id}.{stamp}.".encode() + body
    known = [base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()) for secret in secrets]
    given = [text[3:].encode() for text in (headers.get("webhook-signature") or "").split(" ") if text.startswith("v1,")]
    # Each pair is compared, in constant time.
    if not any([hmac.compare_digest(one, other) for one in known for other in given]):
        raise Refused(401, "no signature is by a secret of ours")
    return event_id


def hand_out(db, event):
    """What this backend does for an event; here: it keeps an account of each user's goods."""
    data, sign = event["data"], SIGNS.get(event["type"], 0)
    if data.get("takeBack") is False:
        sign = 0
    for goods in data.get("goods", []) if sign else []:
        db.execute(
            "insert into goods values (?, ?, ?) on conflict (user_id, item) do update set amount = amount + excluded.amount",
            (event["userId"], goods["item"], sign * goods["amount"]))


def take(database, event):
    """Notes the event, hands it out and remembers the cursor, all or nothing. False: it was taken before."""
    delivery = event["delivery"]
    place, number = map(int, delivery["cursor"].split("-"))
    with closing(sqlite3.connect(database, timeout=DATABASE_WAIT_SECONDS, isolation_level=None)) as db:
        db.execute("pragma synchronous = full")
        db.execute("begin immediate")
        note = (event["id"], event.get("userId"), event["at"])
        is_new = db.execute("insert or ignore into webhook_events values (?, ?, ?)", note).rowcount == 1
        if is_new:
            previous = delivery.get("previousId")
            if previous and not db.execute("select 1 from webhook_events where id = ?", (previous,)).fetchone():
                logging.warning("event %s: the user's event before it, %s, is unknown here; if it does not come, read the feed",
                    event["id"], previous)
            hand_out(db, event)
        db.execute(
            "insert into webhook_cursors values (?, ?, ?) on conflict (endpoint) do update set place = excluded.place, "
            "number = excluded.number where (excluded.place, excluded.number) > (place, number)",
            (delivery["endpoint"], place, number))
        db.execute("commit")
    return is_new


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10

    def do_POST(self):
        try:
            self.receive()
            status = 204
        except Refused as refused:
            logging.warning("refused with %d: %s", refused.status, refused)
            status = refused.status
        except Exception:  # the database, the secrets: Makegood comes again
            logging.exception("failed")
            status = 500
        self.close_connection |= status != 204
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def receive(self):
        length = self.headers.get("Content-Length") or ""
        if not re.fullmatch(r"[0-9]{1,9}", length):
            raise Refused(411, "there is no Content-Length")
        if int(length) > BODY_BYTES_MAX:
            raise Refused(413, "the body is too large")
        body = self.rfile.read(int(length))
        secrets = read_secrets(os.environ["RECEIVER_SECRETS"])
        event_id = verify(self.headers, body, secrets, time.time())
        try:
            event = json.loads(body)
            is_event = event["id"] == event_id and isinstance(event["data"], dict)
            is_event = is_event and re.fullmatch(r"[0-9]{1,18}-[0-9]{1,18}", event["delivery"]["cursor"])
        except (ValueError, KeyError, TypeError):
            is_event = False
        if not is_event:
            raise Refused(400, "the body is no event, or another one than webhook-id names")
        is_new = take(os.environ["RECEIVER_DATABASE"], event)
        logging.info("%s %s%s", event["type"], event["id"], "" if is_new else ", which was taken before")

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        read_secrets(os.environ["RECEIVER_SECRETS"])
    except (OSError, KeyError, ValueError, binascii.Error) as error:
        raise SystemExit(f"receiver: RECEIVER_SECRETS: {error}") from None
    with closing(sqlite3.connect(os.environ["RECEIVER_DATABASE"])) as db:
        db.execute("pragma journal_mode = wal")
        db.executescript(TABLES)
    address = (os.environ.get("RECEIVER_HOST", "127.0.0.1"), int(os.environ.get("RECEIVER_PORT", "8088")))
    Server(address, Handler).serve_forever()
