package import Foundation
package import Postgres
package import Purchases

/// A row that a scheduler claimed.
package struct ClaimedReceipt: Sendable, Equatable {
    package let id: UUID
    package let attempt: Int
    /// Whether the claim has parked it, after eight rescues without a verdict: the scheduler must not publish it.
    package let isNewlyParked: Bool
}

extension Statements {
    package struct Claim: Sendable {
        package var lane: Lane
        package var apps: [String]
        package var limit: Int
        package var rescueDelay: Duration
        package var rescueDelayMax: Duration
        /// Whether the claim parks a row with eight rescues; false where its messages may never have reached a worker.
        package var mayPark = true
        /// Whether the claim takes rows that were rescued before; false where earlier messages still wait in the queue.
        package var repeats = true

        package init(
            lane: Lane, apps: [String], limit: Int, rescueDelay: Duration, rescueDelayMax: Duration,
            mayPark: Bool = true, repeats: Bool = true
        ) {
            self.lane = lane
            self.apps = apps
            self.limit = limit
            self.rescueDelay = rescueDelay
            self.rescueDelayMax = rescueDelayMax
            self.mayPark = mayPark
            self.repeats = repeats
        }
    }

    /// Every lane. A statement that names no lane would read all open rows, because the index of due rows begins with
    /// the lane.
    package static let lanes = Lane.allCases.map { "'\($0.rawValue)'" }.joined(separator: ", ")

    /// How many due rows of an app take turns, the oldest: more than two users may have open by default
    /// (`limits.user`), and each claimed row makes room for the next.
    static let turnsMax = 2400

    /// Claims due rows for publishing: apps in turn, in each app users in turn, of each user the oldest first. A row
    /// that names no user counts for the order that it names. The statement leaves out a row that another scheduler has
    /// locked or claimed. The claim is a lease: the row is due again after the rescue delay, which doubles with every
    /// rescue without a verdict.
    ///
    /// The statement parks a row with eight rescues instead, and the scheduler does not publish it: the row's payload
    /// kills its worker, or no worker is running.
    package static let claim = Statement<Claim, ClaimedReceipt>(
        "ledger.claim",
        """
        with due as (
          select c.id from (
            select w.id, w.due_at, row_number() over (partition by a.app order by w.turn, w.due_at) as turn
            from unnest($2::text[]) as a(app)
            cross join lateral (
              select id, due_at, row_number() over (partition by coalesce(user_id, order_id) order by due_at) as turn
              from (
                select id, due_at, user_id, order_id from receipts
                where lane = $1 and app_id = a.app and due_at is not null and due_at <= now() and ($8 or rescues = 0)
                order by due_at limit \(turnsMax)) r) w) c
          order by c.turn, c.due_at limit $3),
        -- Looked at again under the lock: what a rival has claimed meanwhile is due later. By the id alone: by statistics of
        -- a quiet hour the index of due rows would be walked for each.
        free as (
          select l.id from due cross join lateral (
            select id, due_at from receipts where id = due.id for no key update skip locked limit 1) l
          where l.due_at <= now())
        update receipts r set
          state = case when $7 and r.rescues >= $6 and r.state = 'received' then 'parked' else r.state end,
          reason = case when $7 and r.rescues >= $6 and r.state = 'received' then 'never_worked' else r.reason end,
          -- Parked: messages that point at the old attempt are stale, so they cannot kill another worker.
          attempt = r.attempt + ($7 and r.rescues >= $6 and r.state = 'received')::int,
          rescues = case when $7 and r.rescues >= $6 and r.state = 'received' then 0 else r.rescues + 1 end,
          judged_at = case when $7 and r.rescues >= $6 and r.state = 'received' then now() else r.judged_at end,
          -- Never less than the first lease. Jitter parts what came together: the neighbours of a payload that kills
          -- its worker would otherwise come back beside it every time, and be killed and parked with it.
          due_at = now() + case when $7 and r.rescues >= $6 and r.state = 'received'
            then make_interval(secs => $5 * (1 - random() / 4))
            else make_interval(
              secs => least($4 * power(2, least(r.rescues, 20)) * (1 + random() / 2), $5 * (1 - random() / 4))) end
        where r.id in (select id from free)
        returning r.id, r.attempt, r.rescues = 0
        """,
        bind: { claim in
            [
                .text(claim.lane.rawValue), .texts(claim.apps), .int(claim.limit),
                .double(claim.rescueDelay.inSeconds), .double(claim.rescueDelayMax.inSeconds), .int32(rescuesMax),
                .bool(claim.mayPark), .bool(claim.repeats),
            ]
        },
        read: { row throws(PostgresError) in
            ClaimedReceipt(id: try row.uuid(0), attempt: try row.int(1), isNewlyParked: try row.bool(2))
        })

    /// Counts messages that came again because a worker died with them or gave them back. The worker calls it before it
    /// judges, so that a payload that kills its worker is parked as `never_worked` after as many deaths as rescues
    /// (eight). One row per receipt that is unchanged since it was read: its count, or 0 where it was parked just now.
    /// A receipt that was parked as `never_worked` before is parked again at the next death, for as long as the receipt
    /// is old, up to a day.
    package static let strike = Statement<Strikes, (id: UUID, rescues: Int)>(
        "ledger.strike",
        """
        update receipts r set
          state = case when c.parks then 'parked' else r.state end,
          reason = case when c.parks then 'never_worked' else r.reason end,
          attempt = r.attempt + c.parks::int,
          judged_at = case when c.parks then now() else r.judged_at end,
          due_at = case when c.parks then now() + make_interval(secs => least(greatest(
            extract(epoch from now() - r.received_at)::float8 - $6, $4), $5)) else r.due_at end,
          rescues = case when c.parks then 0 else r.rescues + 1 end
        from (
          select r.id, r.attempt, r.rescues >= $3 or (r.state = 'parked' and r.reason = 'never_worked') as parks
          from unnest($1::uuid[], $2::int[]) as i(id, attempt)
          join receipts r on r.id = i.id and r.attempt = i.attempt and r.settled_at is null
          order by r.id for no key update of r) c
        where r.id = c.id
        returning r.id, r.rescues
        """,
        bind: { strikes in
            [
                .uuids(strikes.pointers.map(\.id)), .int32s(strikes.pointers.map(\.attempt)), .int32(rescuesMax),
                .double(strikes.parking.againMin.inSeconds), .double(strikes.parking.againMax.inSeconds),
                .double(strikes.parking.after.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in (id: try row.uuid(0), rescues: try row.int(1)) })

    package struct Strikes: Sendable {
        package var pointers: [Pointer]
        package var parking: Parking
    }

    /// Rescues without a verdict before a row is parked as `never_worked`.
    package static let rescuesMax = 8
}
