import AppStoreSimulator
import FaultProxy
import Foundation
import Ledger
import NIOHTTP1
import Postgres
package import Purchases
import Synchronization

/// A year of an app's customers in minutes: real servers and processes on one stepped clock, with losses, an outage and
/// kills. At the end the ledger is compared with the App Store's books, to the unit.
package struct YearRun: Sendable {
    package struct Setup: Sendable {
        package var terms: YearPlan.Terms
        /// The nets that are off.
        package var without: Set<Net> = []
        /// The length of a step of the clock.
        package var stepHours = 12
        /// The factor on the pauses of the processes' loops.
        package var scale = 0.05
        /// Whether the run falsifies two grants at the end and compares once more: the proof that it can fail.
        package var falsifies = false
        /// The path of `deploy/local`.
        package var script: String
        /// The path of the program.
        package var executable: String
        /// How many files this process may open.
        package var openFiles: Int

        package init(terms: YearPlan.Terms, script: String, executable: String, openFiles: Int) {
            self.terms = terms
            self.script = script
            self.executable = executable
            self.openFiles = openFiles
        }
    }

    /// How long a step waits until nothing is due.
    private static let quietMax: Duration = .seconds(20)
    /// How long a step at the end waits for the sweeps.
    private static let calmMax: Duration = .seconds(5)
    /// How long the day of 429 waits for the first question of a sweep.
    private static let askedMax: Duration = .seconds(20)
    /// How many posts are on their way at the same time.
    private static let postsAtOnce = 16
    private static let tellEveryDays = 30
    /// How many questions Apple may answer with 429. Each of two workers asks at four endpoints before it knows of a
    /// stop, four calls at a time, and once more after it is killed.
    private static let limitedMax = 128

    private let setup: Setup
    private let plan: YearPlan
    private let tell: @Sendable (String) -> Void

    /// - Parameter tell: called with a line on the state of the run now and then.
    package init(_ setup: Setup, tell: @escaping @Sendable (String) -> Void) {
        self.setup = setup
        self.tell = tell
        plan = YearPlan(setup.terms)
    }

    package func run() async throws -> YearReport {
        let start = ContinuousClock.now
        var report = try await PrivateServers.run(script: setup.script) { servers in
            var shape = TestDeployment.Shape(
                executable: setup.executable, scale: setup.scale, rate: 1, seed: setup.terms.seed,
                openFiles: setup.openFiles)
            (shape.ingests, shape.workers, shape.schedulers) = (1, 2, 1)
            shape.stepsClock = true
            shape.rotas = rotas
            if YearReceiver.isServed(by: setup.executable) { (shape.endpoints, shape.dispatchers) = (1, 1) }
            return try await TestDeployment.run(shape, on: servers, name: "year") { world in
                var stage = try Stage(setup, plan, world, tell)
                return try await stage.play()
            }
        }
        report.seconds = ((ContinuousClock.now - start) / .seconds(1)).rounded()
        return report
    }

    /// The settings by which each customer is asked about every 25 days at most, and about refunds every week. The
    /// program multiplies them by the scale.
    private var rotas: (customers: String, refunds: String) {
        func days(_ days: Double) -> String { "\(min(365, Int(days / setup.scale)))d" }
        return (
            setup.without.contains(.customer) ? "off" : days(25), setup.without.contains(.refund) ? "off" : days(7)
        )
    }

    /// One run on a deployment that is up.
    private struct Stage {
        let setup: Setup
        let plan: YearPlan
        let world: TestDeployment
        let tell: @Sendable (String) -> Void
        private let clock: SteppedClock
        private var market: YearMarket
        private var isOut = false
        private var isLimited = false
        /// Whether the workers have not begun anew since the day of 429.
        private var keepsStop = false
        /// How many calls came before the day of 429, and how many got that answer in it.
        private var callsBefore = 0
        private var limited = 0
        private var killed = 0
        private var reopened = 0
        private var restless: [String] = []
        private var surprises: [String] = []

        init(
            _ setup: Setup, _ plan: YearPlan, _ world: TestDeployment, _ tell: @escaping @Sendable (String) -> Void
        ) throws {
            guard let clock = world.clock else { throw TestDeployment.Failure(description: "no clock that steps") }
            self.setup = setup
            self.plan = plan
            self.world = world
            self.tell = tell
            self.clock = clock
            market = YearMarket(plan, store: world.store, posts: !setup.without.contains(.post))
        }

        mutating func play() async throws -> YearReport {
            try prepareStore()
            let served = try await servedNets()
            try await registerTokens()
            let step = setup.stepHours * 60
            let timeline = plan.timeline
            var next = 0
            var minute = 0
            while minute < plan.minutes {
                try Task.checkCancellation()
                minute += step
                try await clock.step(by: step * 60, world)
                try await breakThings(from: minute - step, until: minute)
                while next < timeline.count, timeline[next].action.minute < minute {
                    await market.perform(timeline[next].action, of: timeline[next].customer)
                    next += 1
                }
                try await hear(until: minute)
                if (minute - step..<minute).contains(plan.repairsAt) { try await repair() }
                let day = minute / YearPlan.minutesPerDay
                if day / YearRun.tellEveryDays != (minute - step) / YearPlan.minutesPerDay / YearRun.tellEveryDays {
                    tell("day \(day) of \(setup.terms.days): \(world.store.ledger.count) transactions")
                }
            }
            try await settle(from: minute, served)
            var report = try await audit(served)
            (report.head, report.limited) = (head, limited)
            if limited > YearRun.limitedMax {
                report.troubles.append("Apple was asked \(limited) times while it answered 429")
            }
            report.troubles += restless.map { "not at rest: \($0)" } + surprises
            report.troubles += try await YearChecks.run(world, clock, scale: setup.scale)
            try await YearReceiver.audit(world, clock, &report)
            if setup.falsifies {
                try await falsify()
                report.noticed = try await audit(served).differences.count - report.differences.count
            }
            return report
        }

        private func audit(_ served: Set<Net>) async throws -> YearReport {
            try await YearAudit(books: market.books, world: world, on: served.subtracting(setup.without)).report()
        }

        /// Gives one grant to another user, and changes the goods of another one: of grants that are compared.
        private func falsify() async throws {
            // A few hundred, because they stand in an argument of a command.
            let ids = world.store.ledger.filter { !market.books.isErased($0.account) }.prefix(500)
                .map { "'\($0.transactionId)'" }
            let compared = "from grants where transaction_id in (\(ids.joined(separator: ", ")))"
            try await world.script(
                """
                update grants set user_id = 'thief' where transaction_id = (select min(transaction_id) \(compared));
                update grants set goods = '[{"item": "coins", "amount": 1}]'
                where transaction_id = (select max(transaction_id) \(compared))
                """)
        }

        private var head: String {
            let off = setup.without.map(\.rawValue).sorted().joined(separator: ", ")
            return """
                \(setup.terms.customers) customers, \(setup.terms.days) days, seed \(setup.terms.seed)\
                \(off.isEmpty ? "" : ", without \(off)"): \(market.done) actions, \(market.refusals) refused by the \
                store, \(world.store.ledger.count) transactions, \(world.store.notifications.count) notifications, \
                \(killed) kills, \(market.books.erased.count) users erased, \(reopened) rejected receipts reopened
                """
        }

        /// Which nets this version of the program has, by what its schema has.
        private func servedNets() async throws -> Set<Net> {
            let words = try await world.texts(
                """
                select 'notification_history' where to_regclass('notification_windows') is not null
                union all
                select 'subscription' where exists (select from information_schema.columns
                  where table_schema = 'public' and table_name = 'chains' and column_name = 'ask_at')
                union all
                select net from unnest(array['customer', 'refund']) net
                where exists (select from information_schema.columns
                  where table_schema = 'public' and table_name = 'history_walks' and column_name = 'swept_at')
                """)
            return Set(words.compactMap { Net(rawValue: $0) } + [.post, .notification])
        }

        // MARK: The store

        /// Tells the store where notifications go, and what happens to them on their way.
        private func prepareStore() throws {
            guard let ingest = world.members(.ingest).first else { return }
            var app = RegisteredApp(
                app: PurchaseGenerator.app, bundleId: PurchaseGenerator.bundle, appAppleId: PurchaseGenerator.appleID)
            app.notificationURL = "http://127.0.0.1:\(ingest.clients.port)/v1/apple/notifications"
            app.gracePeriod = .sixteenDays
            try world.store.register(app)
            let lost = setup.without.contains(.notification) ? 100 : Double(setup.terms.lossPercent)
            if lost > 0 {
                // Of those that do not arrive 60 % fail at Apple, as with a server that does not answer. Of the others
                // Apple notes no attempt. The second fault is asked only where the first one did not fire.
                var failed = NotificationFaultRequest(.fail)
                failed.percent = lost * 0.6
                failed.seed = Int64(setup.terms.seed & 0xFFFF_FFFF)
                try world.store.fault(failed)
                var unsent = NotificationFaultRequest(.lose)
                unsent.percent = min(100, lost * 0.4 / (1 - lost * 0.006))
                try world.store.fault(unsent)
            }
            for (kind, percent) in [(NotificationFaultRequest.Kind.double, 8.0), (.reorder, 8), (.delay, 8)] {
                var fault = NotificationFaultRequest(kind, delay: kind == .delay ? "PT20H" : nil)
                fault.percent = percent
                try world.store.fault(fault)
            }
            try turnNetsOff()
        }

        /// Has the store refuse the questions of the nets that are off.
        private func turnNetsOff() throws {
            if setup.without.contains(.notificationHistory) {
                var fault = FaultRequest(.error, on: .notificationHistory)
                fault.errorCode = 4_040_007
                try world.store.fault(fault)
            }
            for (net, endpoint) in [
                (Net.subscription, FaultRequest.Endpoint.subscriptionStatuses), (.customer, .history),
                (.refund, .refundHistory),
            ] where setup.without.contains(net) {
                try world.store.fault(FaultRequest(.notFound, on: endpoint))
            }
        }

        // MARK: What breaks

        /// Lets Apple answer the questions of the sweeps with 429 and an hour's Retry-After, for a day on the clock.
        private mutating func limitCalls(until end: Int) async throws {
            let isLimitedNow = plan.limited.contains(end - 1)
            guard isLimitedNow != isLimited else { return }
            isLimited = isLimitedNow
            guard !isLimited else {
                callsBefore = world.store.calls().last?.number ?? 0
                for endpoint in [
                    FaultRequest.Endpoint.notificationHistory, .subscriptionStatuses, .history, .refundHistory,
                ] {
                    var fault = FaultRequest(.error, on: endpoint)
                    fault.errorCode = 4_290_000
                    fault.retryAfterMilliseconds = 3_600_000
                    try world.store.fault(fault)
                }
                return tell("day \(end / YearPlan.minutesPerDay): Apple answers 429 to the sweeps")
            }
            let (store, before) = (world.store, callsBefore)  // The steps of a day may end before a sweep came to ask.
            _ = try await world.becomes(within: YearRun.askedMax) {
                store.calls(after: before).contains { $0.status == 429 }
            }
            limited = store.calls(after: before).count { $0.status == 429 }
            store.clearFaults()
            try turnNetsOff()
            keepsStop = true
        }

        /// Lets the workers begin anew after the day of 429. The clock has stepped since: the database keeps a stop by
        /// it, and a process by one that does not step.
        private mutating func forgetStop() async throws {
            guard keepsStop else { return }
            keepsStop = false
            for worker in world.members(.worker) {
                await worker.kill()
                try await worker.start()
                killed += 1
            }
        }

        private mutating func breakThings(from begin: Int, until end: Int) async throws {
            try await forgetStop()
            let isOutNow = plan.outage.contains(end - 1)
            if isOutNow, !isOut {
                for ingest in world.members(.ingest) { await ingest.kill() }
                tell("day \(end / YearPlan.minutesPerDay): the outage begins")
            } else if !isOutNow, isOut {
                for ingest in world.members(.ingest) { try await ingest.start() }
            }
            // Back a step later: a dispatcher gives an endpoint up after 30 days, which are 36 hours at this scale.
            for endpoint in world.endpoints { endpoint.proxy.set(isOutNow && !isOut ? .cut : .forwarding) }
            isOut = isOutNow
            try await limitCalls(until: end)
            for kill in plan.kills where (begin..<end).contains(kill.minute) {
                let role: Member.Role = kill.role == .ingest ? .ingest : kill.role == .worker ? .worker : .scheduler
                guard !(role == .ingest && isOut), let member = world.members(role).first else { continue }
                await member.kill()
                try await member.start()
                killed += 1
            }
        }

        // MARK: What an operator does

        /// Erases some users, and lets everything that was rejected be judged again.
        private mutating func repair() async throws {
            for number in plan.customers.indices where market.books.erased.count < plan.erasures {
                let user = "u\(number)"
                guard try await world.count("select count(*) from grants where user_id = '\(user)'") > 0 else {
                    continue
                }
                try await world.command(["users", "erase", user, "--app", PurchaseGenerator.app, "--yes"])
                market.note(erased: number)
            }
            reopened = try await world.count("select count(*) from receipts where state = 'rejected'")
            try await world.command(["support", "rejudge", "--app", PurchaseGenerator.app])
        }

        // MARK: Posting

        private mutating func registerTokens() async throws {
            guard !isOut, !market.unregistered.isEmpty else { return }
            for (token, user) in market.unregistered {
                let answer = try await world.traffic.send(
                    [], method: .PUT, to: "/v1/users/\(user)/tokens/\(token)?appId=\(PurchaseGenerator.app)",
                    key: Access.app, at: world.traffic.openAddresses)
                guard [200, 201].contains(answer.status) else {
                    throw TestDeployment.Failure(description: "a token was answered \(answer.status)")
                }
            }
            market.registered()
        }

        /// Lets the apps post what is due, and waits until nothing is due any more.
        private mutating func hear(until minute: Int) async throws {
            try await registerTokens()
            if !isOut { try await post(market.takeWaiting(until: minute)) }
            let stage = self
            if try await world.becomes(within: YearRun.quietMax, { try await stage.isQuiet() }) == nil {
                restless.append("day \(minute / YearPlan.minutesPerDay), \(try await due())")
                tell(restless.last ?? "")
            }
        }

        private mutating func post(_ posts: [YearMarket.Waiting]) async throws {
            var refused: [YearMarket.Waiting] = []
            for start in stride(from: 0, to: posts.count, by: YearRun.postsAtOnce) {
                let some = posts[start..<min(start + YearRun.postsAtOnce, posts.count)]
                let world = world
                let statuses = await withTaskGroup(of: (Int, Int).self) { group -> [Int: Int] in
                    for index in some.indices { group.addTask { (index, await Self.post(posts[index], world)) } }
                    return await group.reduce(into: [:]) { $0[$1.0] = $1.1 }
                }
                for index in some.indices {
                    switch statuses[index] ?? 0 {
                    case 200, 202:
                        market.note(
                            .init(
                                transactionID: posts[index].transactionID, userID: posts[index].userID,
                                word: AppleWord(jws: posts[index].signedTransaction)))
                    // Nobody answered, or the server was busy: the app posts again with the next step.
                    case 0, 429, 500...: refused.append(posts[index])
                    case let status: surprises.append("a post was answered \(status)")
                    }
                }
            }
            market.putBack(refused)
        }

        /// The status of the answer; 0: none.
        private static func post(_ post: YearMarket.Waiting, _ world: TestDeployment) async -> Int {
            let body = Array(
                """
                {"appId":"\(PurchaseGenerator.app)","userId":"\(post.userID)",\
                "signedTransaction":"\(post.signedTransaction)"}
                """.utf8)
            @Sendable func send() async -> Int {
                let addresses = world.traffic.openAddresses
                guard !addresses.isEmpty else { return 0 }
                let answer = try? await world.traffic.send(body, to: "/v1/receipts", key: Access.app, at: addresses)
                return answer?.status ?? 0
            }
            guard post.isTwice else { return await send() }
            async let second = send()
            let first = await send()
            return max(first, await second)
        }

        // MARK: Rest

        /// Whether nothing is due in the database, and no notification on its way.
        private func isQuiet() async throws -> Bool {
            let now = world.store.now
            let isSending = world.store.notifications.contains { notification in
                guard let due = notification.delivery?.due, due <= now else { return false }
                // A notification that waits for a later one may wait for an hour.
                return !(notification.delivery?.fault == "reorder" && notification.sendAttempts.isEmpty)
            }
            if isSending, !isOut { return false }
            return try await world.count(Self.dueCount) == 0
        }

        /// The rows that are due, or new. The time is read once: the function of the clock costs microseconds for each
        /// row.
        private static let dueNow = [
            (
                "receipts",
                "due_at is not null and (due_at <= (select now()) or state = 'received' and judged_at is null)"
            ),
            (
                "notifications",
                "due_at is not null and (due_at <= (select now()) or state = 'received' and judged_at is null)"
            ),
            ("chain_marks", "true"), ("chains", "due_at <= (select now())"),
        ].map { table, condition in (table, "(select count(*) from \(table) where \(condition))") }

        private static let dueCount = "select " + dueNow.map(\.1).joined(separator: " + ")

        private func due() async throws -> String {
            let parts = Self.dueNow.map { table, count in "\(count) || ' \(table)'" }
            return try await world.texts("select concat_ws(', ', \(parts.joined(separator: ", ")))").first ?? ""
        }

        /// Lets the clock go on until every wait is over. Where sweeps are served, the slowest rota comes round.
        private mutating func settle(from minute: Int, _ served: Set<Net>) async throws {
            let days = served.contains(.customer) ? 33 : 4
            var minute = minute
            for _ in 0..<days {
                minute += YearPlan.minutesPerDay
                try await clock.step(by: YearPlan.minutesPerDay * 60, world)
                try await forgetStop()
                if isOut { try await breakThings(from: minute, until: minute + 1) }
                try await hear(until: minute)
                if served.contains(.notificationHistory) { try await calm() }
            }
        }

        /// Waits until no sweep has a question that is due, and until sweeps have brought nothing for half a second.
        /// A sweep that Apple refuses an answer is due again and again: the wait leaves those that are off out, and just
        /// ends.
        private func calm() async throws {
            let off = setup.without.map { "'\($0.rawValue)'" }.sorted().joined(separator: ", ")
            let asked = off.isEmpty ? "" : " where sweep not in (\(off))"
            var seen = -1
            var since = ContinuousClock.now
            let isCalm = try await world.becomes(within: YearRun.calmMax) {
                let count = try await world.count(
                    """
                    select (select count(*) from transactions) + (select count(*) from revocations)
                      + (select count(*) from grants) + (select count(*) from notifications)
                    """)
                if count != seen { (seen, since) = (count, .now) }
                guard ContinuousClock.now - since > .milliseconds(500) else { return false }
                return try await world.count("select coalesce(sum(due), 0)::int8 from v_sweeps\(asked)") == 0
            }
            guard isCalm == nil else { return }
            let due = "select concat_ws(' ', sweep, due, progress) from v_sweeps\(asked) order by due desc limit 1"
            tell("a sweep goes on: \(try await world.texts(due).first ?? "")")
        }
    }
}
