import AppStoreSimulator
import Foundation
import Logging
import Postgres
import RabbitMQ
import Synchronization
import WorkQueue

/// The tools of one drill, and the record of its checks.
final class DrillContext: Sendable {
    struct Expectation: Sendable {
        let what: String
        let seen: String
        let holds: Bool
    }

    private struct State {
        var expectations: [Expectation] = []
        var interruptions = 0
        var deliveryInterruptions = 0
        var callsAtOnceFactor = 1
        var retryAfter: Duration?
        var poison = 0
        var random: SplitMix64
    }

    let world: TestDeployment
    /// The start of the drill: its answers count from here.
    let start = ContinuousClock.now
    private let state: Mutex<State>

    init(_ world: TestDeployment) {
        self.world = world
        state = Mutex(State(random: SplitMix64(seed: world.shape.seed &+ 2)))
    }

    var servers: PrivateServers { world.servers }
    var ingests: [Member] { world.members(.ingest) }
    var workers: [Member] { world.members(.worker) }
    var schedulers: [Member] { world.members(.scheduler) }
    var expectations: [Expectation] { state.withLock { $0.expectations } }
    var interruptions: Int { state.withLock { $0.interruptions } }
    var deliveryInterruptions: Int { state.withLock { $0.deliveryInterruptions } }
    var callsAtOnceFactor: Int { state.withLock { $0.callsAtOnceFactor } }

    /// Records whether a condition holds.
    func expect(_ what: String, _ holds: Bool, _ seen: String = "") {
        state.withLock {
            $0.expectations.append(Expectation(what: what, seen: seen.isEmpty ? "\(holds)" : seen, holds: holds))
        }
    }

    /// Waits until the condition becomes true, records whether it did in time, and returns how long it took.
    @discardableResult
    func expect(
        _ what: String, within limit: Duration, _ condition: () async throws -> Bool
    ) async throws -> Duration? {
        let time = try await world.becomes(within: limit, condition)
        expect(what, time != nil, time.map { "after \($0.short)" } ?? "not within \(limit.short)")
        return time
    }

    /// Allows that from here on a call to Apple, a message or a statement is made in vain, so many times.
    func interrupt(_ times: Int = 1) { state.withLock { $0.interruptions += times } }

    /// Allows that webhooks that are on the way to an endpoint now come twice.
    func interruptDelivery() { state.withLock { $0.deliveryInterruptions += 1 } }

    /// Allows calls that a fault keeps open at Apple's side after the worker that made them has gone.
    func allowAbandonedCalls(factor: Int) { state.withLock { $0.callsAtOnceFactor = factor } }

    /// The pause that Apple's 429 asked for, where it can be read.
    var retryAfter: Duration? {
        get { state.withLock { $0.retryAfter } }
        set { state.withLock { $0.retryAfter = newValue } }
    }

    /// The number of messages that the drill itself published and that no worker can decode, or that point at no row.
    var poison: Int {
        get { state.withLock { $0.poison } }
        set { state.withLock { $0.poison = newValue } }
    }

    /// A publisher connected to the broker without a proxy. The caller closes it.
    func publisher() async throws -> Publisher {
        let publisher = Publisher(
            try BrokerConfiguration(url: servers.amqpURL), topology: world.queues.topology, logger: Self.quiet)
        await publisher.start()
        return publisher
    }

    static let quiet = Logger(label: "quiet") { _ in SwiftLogNoOpLogHandler() }

    /// A number below `upTo`, in the order that the seed gives.
    func random(_ upTo: Int) -> Int { state.withLock { Int($0.random.next() % UInt64(max(1, upTo))) } }

    /// A duration of the matrix, scaled, but not below what makes sense.
    func scaled(_ duration: Duration, min least: Duration) -> Duration { max(least, duration * world.shape.scale) }

    func sleep(_ duration: Duration) async throws { try await Task.sleep(for: duration) }

    /// The answers since the drill began.
    var answers: Journal.Summary { world.traffic.journal.summary(start..<ContinuousClock.now) }

    func answers(since: ContinuousClock.Instant) -> Journal.Summary {
        world.traffic.journal.summary(since..<ContinuousClock.now)
    }

    /// Expects that every answer was 200, 202 or one of these statuses (0: no answer).
    func expectAnswers(_ allowed: Set<Int> = [], since: ContinuousClock.Instant? = nil) {
        let summary = answers(since: since ?? start)
        let others = allowed.isEmpty ? "only 200 and 202" : "beside 200 and 202 only \(allowed.sorted())"
        let holds = Set(summary.troubles.keys).isSubset(of: allowed)
        expect(others, holds, "\(summary.troubleText) of \(summary.count)\(holds ? "" : refusals)")
    }

    /// Why posts were not stored, from the logs of the ingests that run now.
    private var refusals: String {
        var reasons: [Substring: Int] = [:]
        for line in ingests.flatMap({ $0.process?.log.split(separator: "\n") ?? [] }) {
            guard line.contains("refused a request"), let start = line.firstRange(of: "error=")?.upperBound else {
                continue
            }
            reasons[line[start...].prefix { $0 != "=" }, default: 0] += 1
        }
        return reasons.map { "; \($0.value)× \($0.key)" }.sorted().joined()
    }

    /// Sells and posts one purchase of the drill's own, and returns the receipt's id once ingest has accepted it.
    func buy(_ kind: PurchaseGenerator.Post.Kind, user: String) async throws -> (post: PurchaseGenerator.Post, id: UUID)
    {
        let post = try await world.shop.make(kind, user: user)
        guard let id = await world.traffic.submit(post) else {
            throw TestDeployment.Failure(description: "a purchase was not accepted")
        }
        return (post, id)
    }

    /// Sets a fault of Apple's that lasts until the drill clears it.
    func fault(
        _ kind: FaultRequest.Kind, _ endpoint: FaultRequest.Endpoint = .all,
        _ change: (inout FaultRequest) -> Void = { _ in }
    ) throws {
        var request = FaultRequest(kind, on: endpoint)
        change(&request)
        try world.store.fault(request)
    }

    func isGranted(_ post: PurchaseGenerator.Post) async throws -> Bool {
        guard let id = post.transactionID else { return false }
        return try await world.count("select count(*) from grants where transaction_id = '\(id)'") == 1
    }

    /// The number of calls about one purchase that Apple has answered or dropped, at one of its services or at all.
    func calls(about post: PurchaseGenerator.Post, to service: SimulatedService? = nil) -> Int {
        world.store.calls().count { call in
            (service == nil || call.service == service)
                && post.transactionID.map { call.transactionIds.contains($0) } ?? false
        }
    }
}

extension Duration {
    var short: String {
        let seconds = self / .seconds(1)
        return seconds < 1 ? "\(Int(seconds * 1000)) ms" : "\((seconds * 10).rounded() / 10) s"
    }
}
