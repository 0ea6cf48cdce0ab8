#!/usr/bin/env node
// Receives Makegood's webhooks, and hands goods out in one transaction with the note that it did. Node 18 and newer, with
// PostgreSQL and the package pg (8 or newer) as its store.
//
//   RECEIVER_SECRETS=secrets.txt RECEIVER_DATABASE=postgresql:///game RECEIVER_PORT=8088 node receiver.cjs
//
// RECEIVER_SECRETS is a file with a secret (whsec_…) a line: one, or two while a secret is changed. Each request reads the
// file anew. Put your own tables beside `webhook_events` and `webhook_cursors`, and your own work in the place of
// `handOut`. The receiver listens on 127.0.0.1, or on RECEIVER_HOST: TLS ends at your gateway.
"use strict";

const { createHmac, timingSafeEqual } = require("node:crypto");
const { readFileSync } = require("node:fs");
const { createServer } = require("node:http");
const { Pool } = require("pg");

const toleranceSeconds = 300;
const bodyBytesMax = 1 << 20;
const signs = { "purchase.granted": 1, "purchase.reinstated": 1, "order.paid": 1, "purchase.revoked": -1 };
const tables = `
  create table if not exists webhook_events (id uuid primary key, user_id text, at timestamptz not null);
  create table if not exists webhook_cursors (endpoint text primary key, place bigint not null, number bigint not null);
  create table if not exists goods (user_id text, item text, amount bigint not null, primary key (user_id, item));`;

/** The request is answered with this status, and nothing of it is kept. */
class Refused extends Error {
  constructor(status, why) {
    super(why);
    this.status = status;
  }
}

/** The secrets of the file, decoded. */
function readSecrets(path) {
  const lines = readFileSync(path, "ascii").split("\n").map((line) => line.trim()).filter(Boolean);
  const secrets = lines.map((line) => Buffer.from(line.replace(/^whsec_/, ""), "base64"));
  const isGood = (line, index) =>
    line === "whsec_" + secrets[index].toString("base64") && secrets[index].length >= 24 && secrets[index].length <= 64;
  if (lines.length === 0 || !lines.every(isGood)) {
    throw new Error(`${path}: each line must be whsec_ and the base64 of 24 to 64 bytes`);
  }
  return secrets;
}

/** Standard Webhooks: one of the signatures is by one of the secrets, over exactly these bytes, and was made just now. */
function verify(headers, body, secrets, now) {
  const id = headers["webhook-id"] ?? "";
  const stamp = headers["webhook-timestamp"] ?? "";
  if (!id || !/^[0-9]{1,12}$/.test(stamp)) throw new Refused(401, "webhook-id or webhook-timestamp is missing");
  if (Math.abs(now - Number(stamp)) > toleranceSeconds) {
    throw new Refused(401, "webhook-timestamp is more than five minutes from this clock");
  }
  const given = (headers["webhook-signature"] ?? "").split(" ").filter((text) => text.startsWith("v1,"))
    .map((text) => Buffer.from(text.slice(3), "base64"));
  let isOurs = false;
  for (const secret of secrets) {
    const known = createHmac("sha256", secret).update(`${id}.${stamp}.`).update(body).digest();
    for (const one of given) {
      // Each pair is compared, in constant time.
      if (one.length === known.length && timingSafeEqual(one, known)) isOurs = true;
    }
  }
  if (!isOurs) throw new Refused(401, "no signature is by a secret of ours");
  return id;
}

/** What this backend does for an event; here: it keeps an account of each user's goods. */
async function handOut(db, event) {
  const sign = event.data.takeBack === false ? 0 : (signs[event.type] ?? 0);
  for (const { item, amount } of sign ? (event.data.goods ?? []) : []) {
    // JSON.parse rounds a greater number.
    if (!Number.isSafeInteger(amount)) throw new Error(`event ${event.id}: the amount of ${item} is no safe integer`);
    await db.query(
      `insert into goods values ($1, $2, $3)
       on conflict (user_id, item) do update set amount = goods.amount + excluded.amount`,
      [event.userId, item, sign * amount]);
  }
}

/** Notes the event, hands it out and remembers the cursor, all or nothing. False: it was taken before. */
async function take(pool, event) {
  const { endpoint, cursor, previousId } = event.delivery;
  const db = await pool.connect();
  try {
    await db.query("begin");
    const noted = await db.query(
      "insert into webhook_events values ($1, $2, $3) on conflict do nothing", [event.id, event.userId ?? null, event.at]);
    const isNew = noted.rowCount === 1;
    if (isNew) {
      const before = previousId && (await db.query("select 1 from webhook_events where id = $1", [previousId]));
      if (before && before.rowCount === 0) {
        console.warn(
          `event ${event.id}: the user's event before it, ${previousId}, is unknown here; if it does not come, read the feed`);
      }
      await handOut(db, event);
    }
    await db.query(
      `insert into webhook_cursors select $1::text, $2::bigint, $3::bigint where not exists (
         select from webhook_cursors where endpoint = $1::text and (place, number) >= ($2::bigint, $3::bigint))
       on conflict (endpoint) do update set place = excluded.place, number = excluded.number
       where (excluded.place, excluded.number) > (webhook_cursors.place, webhook_cursors.number)`,
      [endpoint, ...cursor.split("-")]);
    await db.query("commit");
    db.release();
    return isNew;
  } catch (error) {
    db.release(true); // the connection ends, and its transaction with it
    throw error;
  }
}

/** The bytes of the body. */
async function read(request) {
  const parts = [];
  let length = 0;
  for await (const part of request) {
    length += part.length;
    if (length > bodyBytesMax) throw new Refused(413, "the body is too large");
    parts.push(part);
  }
  return Buffer.concat(parts);
}

async function receive(pool, request) {
  if (request.method !== "POST") throw new Refused(405, "the method is not POST");
  const body = await read(request);
  const id = verify(request.headers, body, readSecrets(process.env.RECEIVER_SECRETS), Date.now() / 1000);
  let event = null;
  try {
    event = JSON.parse(body.toString("utf8"));
  } catch {
    // The next lines refuse it.
  }
  const isEvent = event?.id === id && typeof event.data === "object" && event.data !== null &&
    /^[0-9]{1,18}-[0-9]{1,18}$/.test(event.delivery?.cursor);
  if (!isEvent) throw new Refused(400, "the body is no event, or another one than webhook-id names");
  const isNew = await take(pool, event);
  console.info(`${event.type} ${event.id}${isNew ? "" : ", which was taken before"}`);
}

async function main() {
  readSecrets(process.env.RECEIVER_SECRETS);
  // Less than the endpoint's time limit, so that Makegood reads the 500.
  const pool = new Pool({
    connectionString: process.env.RECEIVER_DATABASE, connectionTimeoutMillis: 3000, statement_timeout: 3000, max: 16,
  });
  pool.on("error", (error) => console.error(`a connection ended: ${error.message}`));
  await pool.query(tables);
  const server = createServer({ requestTimeout: 10000 }, async (request, response) => {
    let status = 204;
    try {
      await receive(pool, request);
    } catch (error) {
      status = error instanceof Refused ? error.status : 500; // the database, the secrets: Makegood comes again
      console.error(status === 500 ? error : `refused with ${status}: ${error.message}`);
      response.setHeader("Connection", "close");
    }
    response.writeHead(status).end();
  });
  server.listen(Number(process.env.RECEIVER_PORT ?? 8088), process.env.RECEIVER_HOST ?? "127.0.0.1");
}

main().catch((error) => {
  console.error(`receiver: ${error.message}`);
  process.exit(1);
});
