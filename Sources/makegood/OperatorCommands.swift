import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import Logging
import Postgres
import Purchases
import RabbitMQ
import Reconciliation
import Settings
import Support
import WorkQueue

struct CheckCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "check",
        abstract: "Prove that what was received is granted, rejected with a reason, or open with a due time.",
        discussion: """
            Read-only, also on a standby. Exit code 0: every invariant holds; 1: one does not.

            With --seals: proves instead that the sealed rows of grants, outcomes, revocations and audits are as they \
            were sealed, and names the block and the row where they are not. The owner of the database may write the \
            seals anew. Then only heads that left the database show the change: --heads names a file with the \
            scheduler's log, or with daily reports.
            """)

    @Flag(help: "All that was ever received, not only in the last two days.")
    var full = false
    @Flag(help: "Check the seals of all time instead of the invariants.")
    var seals = false
    @Option(help: ArgumentHelp("Compare the seals with the heads in this file; - is stdin.", valueName: "file"))
    var heads: String?
    @Flag(help: "Print JSON.")
    var json = false

    func validate() throws {
        if heads != nil, !seals { throw ValidationError("--heads needs --seals") }
        if full, seals { throw ValidationError("--seals checks all seals: leave --full out") }
    }

    func run() async throws {
        guard !seals else { return try await SealCheck(heads: heads, isJSON: json).run() }
        let scale = try Settings().timeScale
        let span = full ? Invariant.Span.all : .recent
        let (violations, read, chains) = try await Connections.withDatabase(
            "check", patience: full ? .seconds(600) : .seconds(60), isReadOnly: true
        ) { database in
            let violations = try await Invariant.check(database, span: span, scale: scale)
            let told = try await Self.followUps(database, span)
            return (
                violations + [told?.violation].compactMap(\.self), try await Invariant.extent(database, span: span),
                told?.chains
            )
        }
        var checks = Invariant.ofTheLedger.map { (id: $0.id, name: $0.name, meaning: $0.meaning) }
        if let chains {
            let meaning = "\(FollowUpCheck.meaning), for \(chains.counted("chain"))"
            checks.append((id: FollowUpCheck.id, name: FollowUpCheck.name, meaning: meaning))
        }
        if json {
            let report = Dictionary(
                uniqueKeysWithValues: checks.map { check in
                    (check.name, violations.first { $0.invariant == check.name }?.count ?? 0)
                })
            try JSON.print(
                JSON.Check(violations: report, read: .init(receipts: read.receipts, grants: read.grants, full: full)))
        } else {
            for invariant in checks {
                let violation = violations.first { $0.invariant == invariant.name }
                print(
                    "\(violation == nil ? "ok    " : "BROKEN") \(invariant.id) \(invariant.name): \(invariant.meaning)")
                for example in violation?.examples ?? [] { print("         \(example)") }
                if let violation, violation.count > violation.examples.count {
                    print("         … \(violation.count) in all")
                }
            }
            if chains == nil {
                print("       The database user may not read Apple's facts: what was told of chains was not compared.")
            }
            print(
                "\(checks.count - violations.count) of \(checks.count) hold, for "
                    + "\(read.receipts.counted("receipt")) and \(read.grants.counted("grant")) "
                    + (full ? "of all time" : "of the last two days")
            )
        }
        if !violations.isEmpty { throw ExitCode(1) }
    }

    /// Nil: this database user may not read Apple's facts.
    private static func followUps(
        _ database: Database, _ span: Invariant.Span
    ) async throws(PostgresError) -> (violation: Invariant.Violation?, chains: Int)? {
        do throws(PostgresError) {
            return try await FollowUpCheck.run(database, span: span)
        } catch .misconfigured(sqlState: "42501", _) {
            return nil
        }
    }
}

struct QueueCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "queue", abstract: "Look at what is open, and set it in motion or to rest.",
        subcommands: [
            Status.self, Redrive.self, Pause.self, Resume.self, Lanes.self, Dead.self, Replay.self, Declare.self,
        ])

    struct Status: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: """
                What is open, by app, lane and state; what is still to be told to Apple; what waits in the queues; the \
                dead letters.
                """,
            discussion: """
                What is open comes from the database, and is shown also while the broker is away. Exit code 1: the broker \
                did not say what waits in the queues.
                """)

        @Flag(help: "Print JSON.")
        var json = false

        func run() async throws {
            let (rows, appleUpdates) = try await Connections.withDatabase("queue") {
                (try await $0.run(Statements.backlog), try await $0.run(Statements.openAppleUpdates))
            }
            // What is open stands in the database, and is shown whatever the broker does.
            var depths: [(String, Int)] = []
            var trouble: RabbitMQError?
            do {
                depths = try await Connections.queueDepths()
            } catch let error as RabbitMQError {
                trouble = error
            }
            if json {
                let open = rows.filter { $0.receipts > 0 }.map {
                    JSON.Backlog(
                        appId: $0.appID, lane: $0.lane, state: $0.state, receipts: $0.receipts,
                        overdueSeconds: $0.overdueSeconds)
                }
                let toTell = appleUpdates.filter { $0.appleUpdates > 0 }.map {
                    JSON.AppleUpdates(
                        appId: $0.appID, kind: $0.kind, state: $0.state, appleUpdates: $0.appleUpdates,
                        overdueSeconds: $0.overdueSeconds)
                }
                try JSON.print(
                    JSON.Status(
                        open: open, appleUpdates: toTell, queues: Dictionary(depths) { first, _ in first },
                        broker: trouble.map { "\($0)" } ?? "ok"))
                return try Self.end(trouble)
            }
            if let trouble { print("queues: unknown, \(trouble)") }
            for (queue, messages) in depths { print("queue \(queue): \(messages.counted("message")) ready") }
            for row in rows where row.receipts > 0 {
                let overdue = Int(row.overdueSeconds)
                print("\(row.appID) \(row.lane) \(row.state): \(row.receipts), oldest due for \(overdue) s")
            }
            if rows.allSatisfy({ $0.receipts == 0 }) { print("no receipt is open") }
            for row in appleUpdates where row.appleUpdates > 0 {
                let overdue = Int(row.overdueSeconds)
                print(
                    "\(row.appID) to tell Apple, \(row.kind) \(row.state): \(row.appleUpdates), oldest due for \(overdue) s"
                )
            }
            try Self.end(trouble)
        }

        private static func end(_ trouble: RabbitMQError?) throws {
            if trouble != nil { throw ExitCode(1) }
        }
    }

    struct Declare: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Declare the queues, where the services' users may not. Safe to repeat.",
            discussion: """
                Services whose user may configure the queues declare them by themselves whenever they connect. With \
                the permissions of `makegood roles --rabbitmq` they only look whether the queues are there: then run \
                this once for a new broker, a new MAKEGOOD_QUEUE_PREFIX or a new MAKEGOOD_TIME_SCALE, as a user who may.
                """)

        func run() async throws {
            try await Connections.withQueues(declares: true) { publisher, queues in
                try await publisher.declare()
                for queue in queues.topology.queues { print("declared \(queue.name)") }
            }
        }
    }

    struct Redrive: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Make parked and held receipts due, so that they are judged again now.",
            discussion: "Without ids: all of them, or those that the options name. Audited; safe to repeat.")

        @Argument(help: "Ids of receipts, as `makegood support waiting` prints them.")
        var ids: [String] = []
        @Option(help: "Only this app.")
        var app: String?
        @Option(help: "parked, held, or both when left out.")
        var state: [String] = []
        @Option(help: "Only receipts with this reason, for example product_unknown.")
        var reason: String?

        func validate() throws {
            for state in state where ![ReceiptState.parked, .held].map(\.rawValue).contains(state) {
                throw ValidationError("--state must be parked or held")
            }
            guard ids.allSatisfy({ UUID(uuidString: $0) != nil }) else { throw ValidationError("an id must be a UUID") }
            if !ids.isEmpty, app != nil || !state.isEmpty || reason != nil {
                throw ValidationError("name ids or options, not both")
            }
        }

        func run() async throws {
            guard ids.isEmpty else { return try await redriveIDs() }
            let states = state.isEmpty ? [.parked, .held] : state.compactMap(ReceiptState.init(rawValue:))
            let count = try await Connections.withDatabase("queue") { database in
                try await Repairs(database: database, actor: Connections.actor)
                    .redrive(states, appID: app, reason: reason)
            }
            print(count.counted("receipt is due", "receipts are due"))
        }

        private func redriveIDs() async throws {
            let named = ids.compactMap(UUID.init(uuidString:))
            let due = try await Connections.withDatabase("queue") { database in
                try await Repairs(database: database, actor: Connections.actor).redrive(named)
            }
            print(due.count.counted("receipt is due", "receipts are due"))
            let others = Set(named).subtracting(due)
            for id in others.map(\.text).sorted() { print("\(id): no held or parked receipt has this id") }
            if !others.isEmpty { throw ExitCode(1) }
        }
    }

    struct Pause: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Judge nothing of an app until it is resumed; what comes in is stored.")

        @Option(help: "The app.")
        var app: String

        func run() async throws {
            try await Connections.withDatabase("queue") { database in
                try await Repairs(database: database, actor: Connections.actor).pause(app)
            }
            print("\(app) is paused")
        }
    }

    struct Resume: AsyncParsableCommand {
        static let configuration = CommandConfiguration(abstract: "End a pause.")

        @Option(help: "The app.")
        var app: String

        func run() async throws {
            let count = try await Connections.withDatabase("queue") { database in
                try await Repairs(database: database, actor: Connections.actor).resume(app)
            }
            print("\(app) is resumed, \(count.counted("receipt is due", "receipts are due"))")
        }
    }

    struct Lanes: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Say who goes first where Apple limits an app's calls, for the time of an incident.",
            discussion: """
                fresh: purchases nobody looked at yet; repair: those that come again; sweep: looking for what no \
                message told us. The others keep this order, and each takes what those before it leave; a tenth is kept \
                for the second. All workers follow with their next lease; v_apple shows it. --first fresh ends it.
                """)

        @Option(help: "The app.")
        var app: String
        @Option(help: "fresh, repair or sweep.")
        var first: CallLane
        @Option(help: "After so many minutes it is as always.")
        var minutes = 60

        func validate() throws {
            guard (1...10_080).contains(minutes) else { throw ValidationError("--minutes must be 1 to 10080") }
        }

        func run() async throws {
            try await Connections.withDatabase("queue") { database in
                try await Repairs(database: database, actor: Connections.actor)
                    .setFirstLane(first, of: app, for: .seconds(60 * minutes))
            }
            print("\(app): \(first.rawValue) first, for \(minutes.counted("minute"))")
        }
    }
}

struct SupportCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "support", abstract: "Repair what went wrong for players.",
        subcommands: [
            Waiting.self, Give.self, Rejudge.self, Own.self, Reports.self, Handled.self, RefundRequestCommand.self,
        ])

    struct Own: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Decide whose a subscription or non-consumable is from now on.",
            discussion: """
                For claims that wait for a person (held, transfer_review: the app's transfer is hold): they are answered \
                by it at once. What was granted stays as it is, and its goods are not given again; its renewals follow. \
                Both users are told, and Apple where the app writes tokens back. Name the present owner to leave it where \
                it is. Needs MAKEGOOD_CONFIG. Audited.
                """)

        @Option(help: "The app.")
        var app: String
        @Option(help: "Apple's id of the purchase, as it was granted; of a subscription the latest period.")
        var transaction: String
        @Option(help: "The user's id, as the app knows it.")
        var user: String

        func run() async throws {
            let configuration = try Settings().loadConfiguration()
            guard let policy = configuration.apps[app]?.policy else {
                throw ValidationError("--app names no app of the file")
            }
            try await Connections.withDatabase("support") { database in
                try await UserProtection.check(configuration.userKeys, in: database)
                guard !configuration.placeholders.contains(user) else {
                    throw ValidationError("--user is a placeholder and names nobody (users.placeholders)")
                }
                let key = configuration.userKeys?.key(of: user, app: app) ?? user
                let repairs = Repairs(database: database, actor: Connections.actor)
                let decided = try await repairs.decideOwner(
                    key, of: transaction, appID: app, isWrittenBack: policy.writesBackTokens && policy.mode == .live)
                guard let before = decided else {
                    print("no subscription or non-consumable was granted in \(app) under this id")
                    throw ExitCode(1)
                }
                print(before == key ? "it stays with its owner" : "moved, from \(before)")
            }
        }
    }

    struct Reports: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Who paid and had no proof to show: what apps reported, and nobody has seen to.",
            discussion: "makegood explain ID tells what is known of an order or transaction that a report names.")

        @Option(help: "Only this app.")
        var app: String?
        @Flag(help: "Print JSON.")
        var json = false

        func run() async throws {
            let reports = try await Connections.withDatabase("support", isReadOnly: true) { database in
                try await Repairs(database: database, actor: Connections.actor).waitingReports(app)
            }
            let lines = reports.map { report in
                [
                    "id": report.id.text, "app": report.appID, "user": report.userID,
                    "orderId": report.orderID?.text, "transactionId": report.transactionID, "kind": report.kind,
                    "device": report.device, "message": report.message,
                    "reportedAt": report.reportedAt.rfc3339,
                ].compactMapValues { $0 }
            }
            if json { return try JSON.print(lines) }
            for line in lines {
                let names = [
                    "reportedAt", "id", "app", "user", "kind", "orderId", "transactionId", "device", "message",
                ]
                print(names.map { line[$0] ?? "-" }.joined(separator: "  "))
            }
            if lines.isEmpty { print("nothing waits") }
            if lines.count == Statements.waitingReportsMax { print("… and more") }
        }
    }

    struct Handled: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Note that a person has seen to a report. Audited; nothing else happens by it.")

        @Argument(help: "The report's id, as `makegood support reports` prints it.")
        var id: String

        func validate() throws {
            if UUID(uuidString: id) == nil { throw ValidationError("the id must be a UUID") }
        }

        func run() async throws {
            guard let id = UUID(uuidString: id) else { throw ExitCode(2) }
            let isHandled = try await Connections.withDatabase("support") { database in
                try await Repairs(database: database, actor: Connections.actor).handleReport(id)
            }
            print(isHandled ? "noted" : "no such report waits")
            if !isHandled { throw ExitCode(1) }
        }
    }

    struct Rejudge: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Judge rejected receipts again, once roots, bundle id or environments are mended.",
            discussion: """
                Mend the configuration and let the workers take it (SIGHUP) first. What is rejected for a reason that \
                may be our own fault (untrusted_root, wrong_app, wrong_environment, certificate, …) was never safe to \
                finish, and its proof is kept for half a year; what cannot be judged any more, because its proof is \
                gone, is counted. Audited, in batches, and safe to repeat.
                """)

        @Option(help: "The app.")
        var app: String
        @Option(help: "Only receipts with this reason, for example wrong_app.")
        var reason: String?
        @Option(help: "Only receipts rejected since then, for example 2026-11-21T00:00:00Z.")
        var since: String?
        @Flag(help: "Only count.")
        var dryRun = false

        func validate() throws {
            if let since, (try? Date.ISO8601FormatStyle().parse(since)) == nil {
                throw ValidationError("--since must be a time such as 2026-11-21T00:00:00Z")
            }
        }

        func run() async throws {
            let since = try since.map { try Date.ISO8601FormatStyle().parse($0) }
            try await Connections.withDatabase("support") { database in
                let repairs = Repairs(database: database, actor: Connections.actor)
                let counts = try await repairs.countRejected(app, reason: reason, since: since)
                let gone = counts.reduce(0) { $0 + $1.withoutPayload }
                if dryRun {
                    for row in counts { print("\(row.reason): \(row.count)") }
                    print("\(counts.reduce(-gone) { $0 + $1.count }.counted("receipt")) would be judged again")
                } else {
                    let count = try await repairs.rejudge(app, reason: reason, since: since)
                    print("\(count.counted("receipt is", "receipts are")) judged again")
                }
                if gone > 0 {
                    let stays = gone.counted("stays rejected: its payload", "stay rejected: their payload")
                    print("\(stays) is gone, nothing can be judged from it")
                }
            }
        }
    }
}

/// The JSON that the commands print.
enum JSON {
    struct Check: Encodable {
        struct Read: Encodable {
            let receipts: Int
            let grants: Int
            /// Whether they are all, or those of the last two days.
            let full: Bool
        }

        /// The number of violations by invariant.
        let violations: [String: Int]
        let read: Read
    }

    struct Status: Encodable {
        let open: [Backlog]
        let appleUpdates: [AppleUpdates]
        /// The number of ready messages by queue.
        let queues: [String: Int]
        /// `ok`, or why the broker did not answer; `queues` is empty then.
        let broker: String
    }

    struct Backlog: Encodable {
        let appId: String
        let lane: String
        let state: String
        let receipts: Int
        let overdueSeconds: Double
    }

    struct AppleUpdates: Encodable {
        let appId: String
        let kind: String
        let state: String
        let appleUpdates: Int
        let overdueSeconds: Double
    }

    static func print(_ value: some Encodable) throws {
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
        Swift.print(String(decoding: try encoder.encode(value), as: UTF8.self))
    }
}

extension CallLane: ExpressibleByArgument {}
