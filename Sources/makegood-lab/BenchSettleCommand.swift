import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import Postgres
import Purchases

/// `makegood-lab bench settle`: measures the cost of matching as a part of settling. Hidden: it writes purchases that
/// nobody made.
struct BenchSettleCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "settle",
        abstract: "Settle purchases with and without orders, in turn, and say what the orders cost.",
        discussion: """
            One connection, batches as a worker writes them. Without orders: what was posted is granted to its poster. \
            With: the database is asked whose it is, the table decides, and the order that the token names is bound. \
            Posting and placing are not counted. Prints one line of JSON; `cost` is the share that orders add to \
            settling, of the medians. Only for a migrated database that holds nothing but what the benches wrote: an \
            empty one, or one that makegood-lab bench fill filled; may be repeated.
            """, shouldDisplay: false)

    @Option(help: ArgumentHelp("Batches of each kind; the first of each does not count.", valueName: "number"))
    var batches = 300
    @Option(help: ArgumentHelp("Purchases of a batch.", valueName: "number"))
    var batch = 256

    func validate() throws {
        guard (3...100_000).contains(batches) else { throw ValidationError("--batches must be 3 to 100000") }
        guard (1...512).contains(batch) else { throw ValidationError("--batch must be 1 to 512") }
    }

    func run() async throws {
        let timings = try await Connections.withDatabase("bench-settle", keepsPlans: true) { database in
            if try await database.run(SettleTrial.foreign).first == true {
                throw ValidationError("the database holds receipts that no bench put there")
            }
            var timings = SettleTimings()
            for number in 0..<batches {
                for hasOrders in number % 2 == 0 ? [false, true] : [true, false] {
                    let trial = try await SettleTrial(batch, hasOrders: hasOrders, in: database)
                    let timing = try await trial.run(in: database)
                    if number > 0 { timings.add(timing, hasOrders: hasOrders) }
                }
            }
            return timings
        }
        Terminal.show(timings.json(batch: batch))
    }
}

/// One batch of posted purchases; either each has an order of its poster or none has one.
struct SettleTrial {
    static let app = "bench"
    static let product = AppPolicy.Product(
        id: "com.example.bench.coins6", kind: .consumable, goods: [.init(item: "coins", amount: 6000)])
    static let policy = AppPolicy(
        id: app, grantFrom: .distantPast, makeUpMaxAge: .zero, makeUpUsersPerCustomer: 0, products: [product])

    /// The facts that a worker stores of a signed transaction, in their usual size.
    static let facts = #"{"price": 990, "reason": "PURCHASE", "currency": "USD", "storefront": "USA"}"#

    /// Whether the database holds receipts that neither a fill nor this bench wrote.
    static let foreign = Statement<Void, Bool>(
        "bench.foreign_app",
        "select exists (select from tallies where source <> 'fill' and app_id <> '\(app)')",
        read: { row throws(PostgresError) in try row.bool(0) })

    private static let place = Statement<(orders: [UUID], users: [String]), Void>(
        "bench.place",
        """
        insert into orders (id, app_id, user_id, product_id, environment, goods, target, debounce_key, placed_at)
        select id, '\(app)', usr, '\(product.id)', 'Production', '[{"item": "coins", "amount": 6000}]',
          '{"server": "s1", "role": "r1"}', sha256(id::text::bytea), now() - interval '1 minute'
        from unnest($1::uuid[], $2::text[]) as i(id, usr)
        """,
        bind: { [.uuids($0.orders), .texts($0.users.map(Optional.init))] })

    struct Timing {
        var evidence = 0.0
        var settle = 0.0
    }

    private let hasOrders: Bool
    private let posted: [(submission: Submission, transaction: Transaction)]

    /// Posts them, and places their orders.
    init(_ count: Int, hasOrders: Bool, in database: Database) async throws {
        self.hasOrders = hasOrders
        let bought = Date()
        posted = (0..<count).map { _ in
            let id = OrderID.make(at: bought)
            let person = Int.random(in: 0..<1_000_003)
            let user = "u\(person)"
            let transaction = Transaction(
                id: "8" + String(UInt64.random(in: 0...UInt64.max)), originalID: nil, productID: Self.product.id,
                kind: .consumable, environment: Transaction.production, purchasedAt: bought,
                appAccountToken: hasOrders ? id : nil, ownership: "PURCHASED",
                customerID: "7\(10_000_000_000 + person)",
                signedAt: bought, reason: "PURCHASE", showsToken: true, facts: Self.facts)
            let proof = Proof.signedTransaction("\(id.uuidString).bench.bench")
            return (
                Submission(
                    appID: Self.app, userID: user, orderID: hasOrders ? id.text : nil, proof: proof),
                transaction
            )
        }
        let inserted = try await database.run(
            Statements.insertReceipts,
            Statements.Insertion(submissions: posted.map(\.submission), schedule: RetrySchedule()))
        precondition(inserted.count == count, "random ids are new")
        guard hasOrders else { return }
        try await database.run(
            Self.place,
            (
                orders: posted.compactMap(\.transaction.appAccountToken),
                users: posted.compactMap(\.submission.userID)
            ))
    }

    func run(in database: Database) async throws -> Timing {
        var timing = Timing()
        let clock = ContinuousClock()
        var start = clock.now
        var evidence = posted.map { _ in Evidence.none }
        if hasOrders {
            let questions = posted.map {
                EvidenceQuestion(
                    appID: Self.app, userID: $0.submission.userID, namedOrderID: $0.transaction.appAccountToken,
                    installationID: nil, transaction: $0.transaction)
            }
            evidence = try await EvidenceQuestion.answers(to: questions, in: database)
            timing.evidence = (clock.now - start).inSeconds
            start = clock.now
        }
        let verdicts = zip(posted, evidence).map { posted, evidence in
            let claim = Claim(userID: posted.submission.userID, hasPossession: true, receivedAt: Date())
            return Verdict(
                receiptID: posted.submission.receiptID, attempt: 0, appID: Self.app, claim: claim,
                decisions: .transactions([Self.policy.judge(posted.transaction, claim: claim, evidence: evidence)]),
                dueIn: .seconds(600))
        }
        let settled = try await database.settle(SettleBatch(verdicts: verdicts, parking: Parking()))
        timing.settle = (clock.now - start).inSeconds
        guard settled.count(where: { $0.state == .granted }) == posted.count else {
            throw ValidationError("a purchase of the bench was not granted")
        }
        return timing
    }
}

private struct SettleTimings {
    private var plain: [Double] = []
    private var ordered: [Double] = []
    private var evidence: [Double] = []

    mutating func add(_ timing: SettleTrial.Timing, hasOrders: Bool) {
        guard hasOrders else { return plain.append(timing.settle) }
        ordered.append(timing.evidence + timing.settle)
        evidence.append(timing.evidence)
    }

    func json(batch: Int) -> String {
        let (plain, ordered, evidence) = (Self.median(plain), Self.median(ordered), Self.median(evidence))
        return "{\"plainPerSecond\":\((Double(batch) / plain).rounded(to: 0)),"
            + "\"orderedPerSecond\":\((Double(batch) / ordered).rounded(to: 0)),"
            + "\"cost\":\((ordered / plain - 1).rounded(to: 3)),"
            + "\"plainMilliseconds\":\((plain * 1000).rounded(to: 2)),"
            + "\"orderedMilliseconds\":\((ordered * 1000).rounded(to: 2)),"
            + "\"evidenceMilliseconds\":\((evidence * 1000).rounded(to: 2)),\"batch\":\(batch)}"
    }

    private static func median(_ values: [Double]) -> Double { values.sorted()[values.count / 2] }
}
