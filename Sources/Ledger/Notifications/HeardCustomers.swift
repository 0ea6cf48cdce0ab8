package import Foundation
import Postgres
import Purchases

// The writes of a hear transaction about Apple's customers and about differences between Apple's books and ours.
extension Statements {
    /// Notes what an answer of Apple's shows to be missing, undone or different here. Runs before the facts of the
    /// answer are stored, and compares the answer with the stored facts.
    static let noteHeardDifferences = Statement<[HeardPurchase], Void>(
        "differences.note_heard",
        [
            .text("app") { $0.appID }, .text("net") { $0.net.rawValue }, .text("transaction") { $0.transaction.id },
            .text("environment") { $0.transaction.environment }, .text("product") { $0.transaction.productID },
            .int32("quantity") { $0.transaction.quantity }, .date("revoked_at") { $0.transaction.revokedAt },
            .date("signed_at") { $0.transaction.signedAt }, .bool("opens") { $0.opensReceipt },
        ],
        sql: { rows in
            """
            insert into differences as d (category, subject, app_id, environment, net, details)
            select distinct on (k.category, i.transaction) k.category, i.transaction, i.app, i.environment, i.net,
              jsonb_strip_nulls(jsonb_build_object('product', i.product, 'quantity', i.quantity,
                'given', case when k.category = 'goods_differ' then g.quantity end))
            from \(rows.rows(as: "i"))
            left join lateral (
              select transaction_id, revoked_at, signed_at from transactions
              where transaction_id = i.transaction offset 0) t on true
            left join lateral (
              select quantity from grants where transaction_id = i.transaction offset 0) g on true
            left join lateral (
              select kind from revocations where transaction_id = i.transaction order by ordinal desc limit 1) r on true
            cross join lateral (values
              ('purchase_missing',
                t.transaction_id is null and i.opens and i.revoked_at is null and g.quantity is null),
              ('end_missing', g.quantity is not null and i.revoked_at is not null and t.revoked_at is null
                and r.kind is distinct from 'revoked'),
              ('end_undone', i.revoked_at is null and r.kind = 'revoked' and i.signed_at > t.signed_at),
              ('goods_differ', g.quantity <> i.quantity)) k(category, is_so)
            where k.is_so
            order by k.category, i.transaction
            \(onKnownDifference)
            """
        })

    static let onKnownDifference = """
        on conflict (category, subject) do update
          set net = excluded.net, details = excluded.details, seen_at = now(), ended_at = null
          where d.ended_by is null
        """

    /// A customer whom Apple names.
    package struct NamedCustomer: Sendable, Equatable {
        package var walk: Walk
        package var askedID: String
        package var activeUntil: Date

        package init(walk: Walk, askedID: String, activeUntil: Date) {
            self.walk = walk
            self.askedID = askedID
            self.activeUntil = activeUntil
        }
    }

    /// Enters customers whom a page of Apple's names, so that they are on the rota.
    static let nameCustomers = Statement<[NamedCustomer], Void>(
        "customers.name",
        [
            .text("app_id") { $0.walk.appID }, .text("environment") { $0.walk.environment },
            .text("customer_id") { $0.walk.customer }, .text("original") { $0.walk.customer },
            .text("asked") { $0.askedID }, .date("active_until") { $0.activeUntil },
        ],
        sql: { rows in
            """
            \(enteringCustomers(from: rows.rows(as: "i")))
            on conflict (app_id, environment, customer) do update set active_until = excluded.active_until
              where excluded.active_until > coalesce(w.active_until, '-infinity')
            """
        })

    /// SQL: inserts rows that have no time to ask yet.
    ///
    /// - Parameter rows: has `app_id`, `environment`, `customer_id`, `original`, `asked` and `active_until`.
    static func enteringCustomers(from rows: String) -> String {
        """
        insert into history_walks as w (app_id, environment, customer, asked_id, begun_at, busy_until, active_until)
          select app_id, environment, coalesce(customer_id, original), min(asked), to_timestamp(0), to_timestamp(0),
            max(active_until)
          from \(rows) group by 1, 2, 3 order by 1, 2, 3
        """
    }

    /// The place that a sweep has reached in Apple's list. The transaction that stores a page moves the place.
    package struct CustomerPlace: Sendable {
        package enum Net: Sendable {
            case customer, refund
        }

        package enum Next: Sendable, Equatable {
            /// The same reader asks for the next page within this time.
            case page(lease: Duration)
            /// Others have their turn for this time.
            case rest(Duration)
            /// All pages are stored. The customer is asked again after this time.
            case end(dueIn: Duration)
            /// All pages are stored, and Apple names the customer by another id: the row leaves the rota.
            case gone
        }

        package var net: Net
        package var walk: Walk
        package var reader: Int
        /// Behind the page; nil: Apple named none.
        package var revision: String?
        /// Entries of the page that do not verify.
        package var passedOver: Int
        package var next: Next

        package init(net: Net, walk: Walk, reader: Int, revision: String?, passedOver: Int, next: Next) {
            self.net = net
            self.walk = walk
            self.reader = reader
            self.revision = revision
            self.passedOver = passedOver
            self.next = next
        }

        fileprivate var word: String {
            switch next {
            case .page: "page"
            case .rest: "rest"
            case .end: "end"
            case .gone: "gone"
            }
        }

        fileprivate var seconds: Double {
            switch next {
            case .page(let duration), .rest(let duration), .end(let duration): duration.inSeconds
            case .gone: 0
            }
        }
    }

    /// Moves the places of sweeps whose reader still has the claim. A wish that came during the sweep stays.
    ///
    /// After entries that do not verify the customer is asked again within a day, and from the first page.
    static let moveCustomers = Statement<[CustomerPlace], Void>(
        "customers.move", placeColumns,
        sql: { rows in
            """
            update history_walks w set swept_revision = coalesce(i.revision, w.swept_revision),
              swept_pages = w.swept_pages + 1, passed_over = w.passed_over + i.passed_over, failures = 0,
              problem = null,
              swept_until = case when i.next = 'page' then now() + make_interval(secs => i.seconds) else now() end,
              swept_begun_at = case when i.next in ('page', 'rest') then w.swept_begun_at end,
              swept_at = case when i.next in ('page', 'rest') then w.swept_at else now() end,
              wanted_by = case when i.next in ('page', 'rest') or i.next = 'end' and w.wanted_at > w.swept_begun_at
                then w.wanted_by end,
              refunds_due_at = case when i.next <> 'gone' then w.refunds_due_at end,
              due_at = case i.next when 'page' then w.due_at when 'gone' then 'infinity'
                when 'rest' then now() + make_interval(secs => i.seconds)
                else case when w.wanted_at > w.swept_begun_at then w.due_at
                  when w.passed_over + i.passed_over > 0 then now() + make_interval(secs => least(i.seconds, i.day))
                  else now() + make_interval(secs => i.seconds) end end
            from \(lockedPlaces(rows, reader: "sweeper")) i
            where w.app_id = i.app and w.environment = i.environment and w.customer = i.customer
            """
        })

    static let moveRefunds = Statement<[CustomerPlace], Void>(
        "customers.move_refunds", placeColumns,
        sql: { rows in
            """
            update history_walks w set refunds_revision = case when i.next in ('page', 'rest') then i.revision end,
              refunds_pages = 1 + case when w.refunds_revision is null then 0 else w.refunds_pages end,
              refunds_passed_over = i.passed_over
                + case when w.refunds_revision is null then 0 else w.refunds_passed_over end,
              refunds_failures = 0,
              refunds_until = case when i.next = 'page' then now() + make_interval(secs => i.seconds) else now() end,
              refunds_at = case when i.next = 'end' then now() else w.refunds_at end,
              refunds_due_at = case when w.refunds_due_at is null then null when i.next = 'page' then w.refunds_due_at
                when i.next = 'rest' or w.active_until > now() then now() + make_interval(secs => i.seconds) end
            from \(lockedPlaces(rows, reader: "refunds_reader")) i
            where w.app_id = i.app and w.environment = i.environment and w.customer = i.customer
            """
        })

    private static let placeColumns: [Column<CustomerPlace>] = [
        .text("app") { $0.walk.appID }, .text("environment") { $0.walk.environment },
        .text("customer") { $0.walk.customer }, .int("reader") { $0.reader }, .text("revision") { $0.revision },
        .int32("passed_over") { $0.passedOver }, .text("next") { $0.word }, .double("seconds") { $0.seconds },
        .double("day") { _ in 86_400 },
    ]

    /// SQL: the places whose reader has the claim, locked in the order of their keys.
    private static func lockedPlaces(_ rows: BatchRows, reader: String) -> String {
        """
        (select i.* from \(rows.rows(as: "i")) join history_walks w
            on (w.app_id, w.environment, w.customer) = (i.app, i.environment, i.customer) and w.\(reader) = i.reader
          order by i.app, i.environment, i.customer for no key update of w)
        """
    }
}

/// A purchase that a question to Apple told.
struct HeardPurchase: Sendable {
    var appID: String
    var net: Net
    var transaction: Transaction
    /// Whether the answer opens a receipt for the purchase, because the purchase may be given.
    var opensReceipt: Bool
}
