import Encoding
import Foundation
import Ledger
import Logging
import Purchases
import Service
import ServiceLifecycle
import Settings
import Synchronization

/// One turn of this dispatcher at one endpoint: it reads what is due, sends it, and stores the results, until nothing
/// is due for a second, the process shuts down, or the turn is lost.
///
/// One task runs the turn step by step, and only the sends run beside it. An event is in hand from when it is read
/// until its result is stored, so a crash repeats at most what is in flight.
struct SendingTurn: ~Copyable {
    /// The length of a turn, unless it is renewed.
    static let length: Duration = .seconds(2)
    static let renewal: Duration = .milliseconds(500)
    /// Nothing is sent in the last part of a turn, by the monotonic clock of this process.
    static let margin: Duration = .milliseconds(250)
    static let idleMax: Duration = .seconds(1)
    static let pageMax = 256
    /// How long nothing due means that nothing is due.
    static let readInterval: Duration = .milliseconds(50)
    /// The steps of a turn that nothing wakes.
    static let stepInterval: Duration = .milliseconds(10)

    /// An event that was read, and is not sent yet.
    struct Ready {
        let due: DueEvent
        let event: Event
        let user: RevealedUser?
    }

    /// An event whose send has ended.
    struct Sent: Sendable {
        let due: DueEvent
        /// Nil: nothing passes the endpoint's filter, and nothing was sent.
        let answer: DeliveryAnswer?
        /// Whether the endpoint was failing when the event was sent.
        let isProbe: Bool
    }

    /// What a dispatcher has for all its turns.
    struct Parts: Sendable {
        let ledger: Ledger
        let users: UserRegister
        let directory: EndpointDirectory
        /// For the webhooks of all turns together.
        let places: AsyncSemaphore
        let metrics: DeliveryMetrics
        let logger: Logger

        func reveal(
            _ events: [Event], for endpoint: DefinedEndpoint
        ) async throws(LedgerError) -> [UserName: RevealedUser] {
            guard let keys = endpoint.userKeys else { return [:] }
            return try await users.reveal(Set(events.filter { !$0.userID.isEmpty }.map(\.user)), keys)
        }
    }

    let parts: Parts
    let request: TurnRequest
    let wake: AsyncStream<Void>.Continuation
    var endpoint: DefinedEndpoint
    var results: ResultStore
    private let finished = FinishedSends<Sent>()
    private let startedAt = ContinuousClock.now

    /// When the turn ends by this process's clock.
    private var until: ContinuousClock.Instant
    private var renewAt: ContinuousClock.Instant
    private var cursor = EventCursor.start
    private var pace: SendPace
    private var ready: [Ready] = []
    private var replays: ReplaySender
    /// The streams of `ready`, of what is in flight, and of results that are not stored.
    private var inHand: Set<Int> = []
    /// Streams of users whom nobody can name: left alone in this turn.
    private var unreadable: Set<Int> = []
    private var inFlight = 0
    private var readAt: ContinuousClock.Instant
    /// When something was last due or in hand.
    private var busyAt: ContinuousClock.Instant
    private var isDefined = true

    init(_ endpoint: DefinedEndpoint, _ parts: Parts, wake: AsyncStream<Void>.Continuation) {
        let now = ContinuousClock.now
        self.endpoint = endpoint
        self.parts = parts
        self.wake = wake
        request = TurnRequest(endpoint: endpoint.key.id, holder: UUID(), length: Self.length)
        results = ResultStore(endpoint: endpoint.key, holder: request.holder, parts)
        replays = ReplaySender(parts, wake: wake)
        (until, renewAt, readAt, busyAt) = (now, now, now, now)
        pace = SendPace(now: now)
    }

    /// - Parameter signals: elements tell that a send has ended or that something is due.
    /// - Returns: whether this dispatcher had the turn.
    mutating func run(_ signals: inout AsyncStream<Void>.Iterator) async -> Bool {
        guard await renew(at: .now), isDefined else { return false }
        await withDiscardingTaskGroup { group in
            group.addTask { [wake] in
                while !Task.isCancelled {
                    try? await Task.sleep(for: Self.stepInterval)
                    wake.yield()
                }
            }
            while await step(&group) { await signals.next() }
            group.cancelAll()
        }
        // What is still in flight here was cancelled, because another dispatcher may have the turn by now.
        results.add(takeFinished(), pace: &pace)
        await results.storeRest()
        await replays.storeRest(endpoint, pace: &pace)
        parts.metrics.setInFlight(0, endpoint.key)
        do {
            _ = try await parts.ledger.run(Statements.endTurn, request)
        } catch {
            parts.logger.debug("a turn was not given back and ends by itself", metadata: LogKeys.error(error))
        }
        return true
    }

    /// - Returns: whether the turn goes on.
    private mutating func step(_ group: inout DiscardingTaskGroup) async -> Bool {
        results.add(takeFinished(), pace: &pace)
        if results.isDue(inFlight: inFlight) {
            for stream in await results.store() { inHand.remove(stream) }
            readAt = .now
        }
        if ContinuousClock.now >= renewAt, await !renew(at: .now) { renewAt = .now + Self.renewal / 4 }
        guard ContinuousClock.now < until, !results.isTurnLost else { return false }
        if maySend {
            await read()
            send(&group)
        }
        await replays.step(&group, to: endpoint, places: replayPlaces, cursor: cursor, pace: &pace)
        parts.metrics.setInFlight(inFlight + replays.inFlight, endpoint.key)
        let now = ContinuousClock.now
        if inFlight > 0 || !results.isEmpty || replays.isBusy && results.health.state == .working { busyAt = now }
        guard inFlight == 0, results.isEmpty, replays.inFlight == 0 else { return true }
        guard maySend else { return false }
        if !ready.isEmpty || now < pace.restsUntil { busyAt = now }
        return now - busyAt < Self.idleMax
    }

    /// Whether new events may be sent. A failing endpoint gets one event, and then none before the next probe.
    private var maySend: Bool {
        guard isDefined, !Task.isShuttingDownGracefully, !Task.isCancelled else { return false }
        switch results.health.state {
        case .working: return true
        case .failing: return !results.hasProbed
        case .suspended: return false
        }
    }

    /// Takes the turn or renews it, and follows the configuration.
    ///
    /// - Returns: whether this dispatcher has the turn for another ``length``.
    private mutating func renew(at now: ContinuousClock.Instant) async -> Bool {
        do {
            guard let row = try await parts.ledger.run(Statements.takeTurn, request).first else { return false }
            let cursor = try await parts.ledger.run(Statements.deliveredCursor, request.endpoint).first
            results.follow(row)
            if let cursor, (cursor.place, cursor.id) > (self.cursor.place, self.cursor.id) { self.cursor = cursor }
        } catch {
            parts.logger.debug("a turn was not renewed", metadata: LogKeys.error(error))
            return false
        }
        (until, renewAt) = (now + Self.length, now + Self.renewal)
        if let defined = parts.directory.current[request.endpoint] {
            endpoint = defined
        } else {
            isDefined = false
        }
        return true
    }

    private mutating func takeFinished() -> [Sent] {
        let (sent, ended) = finished.take()
        inFlight -= ended
        return sent
    }

    /// Reads the next events, where places wait for them.
    private mutating func read() async {
        let now = ContinuousClock.now
        let concurrency = endpoint.settings.concurrency
        guard now >= readAt, now >= pace.restsUntil, ready.count < concurrency else { return }
        let limit = results.health.state == .working ? Self.pageMax : 1
        do {
            let page = try await parts.ledger.run(
                Statements.dueEvents,
                .init(filter: endpoint.filter, limit: limit, except: Array(inHand.union(unreadable))))
            let users = try await parts.reveal(page.compactMap(\.event), for: endpoint)
            for due in page {
                guard let event = due.event else {
                    inHand.insert(due.stream)
                    results.add([Sent(due: due, answer: nil, isProbe: false)], pace: &pace)
                    continue
                }
                let user = users[event.user]
                guard user != .unreadable else {
                    leave(due, event)
                    continue
                }
                inHand.insert(due.stream)
                ready.append(Ready(due: due, event: event, user: user))
            }
            readAt = page.count == limit ? now : now + Self.readInterval
        } catch {
            parts.logger.debug("due events were not read", metadata: LogKeys.error(error))
            readAt = now + Self.renewal
        }
    }

    /// A backend that gave goods to an unreadable user would give them to the wrong one: the event waits until the
    /// configuration has the user's key again. No attempt is counted, because the fault is ours.
    private mutating func leave(_ due: DueEvent, _ event: Event) {
        if parts.metrics.tellsUnreadable(endpoint.key) {
            parts.logger.error(
                "events wait, because their users were written with a key that users.protect does not list: add the key",
                metadata: LogKeys.endpoint(endpoint.key, ["event.id": "\(event.id.text)"]))
        }
        unreadable.insert(due.stream)
        parts.metrics.count(.unreadable, endpoint.key)
    }

    /// Sends what is ready, as far as the endpoint's concurrency and rate allow. A place is free again when its result
    /// is stored.
    private mutating func send(_ group: inout DiscardingTaskGroup) {
        let now = ContinuousClock.now
        guard now < until - Self.margin else { return }
        let isProbe = results.health.state == .failing
        let places = isProbe ? 1 : endpoint.settings.concurrency
        while inFlight + replays.inFlight + results.count < places, !ready.isEmpty,
            pace.take(endpoint.settings.rate, now: now)
        {
            let next = ready.removeFirst()
            if isProbe { results.hasProbed = true }
            inFlight += 1
            let payload = WebhookPayload(
                next.event, user: next.user, endpoint: endpoint.key.name, sequence: next.due.sequence,
                previousID: next.due.previousID, cursor: cursor, attempt: next.due.attempts + 1)
            let reports = HandOutReports(endpoint.key, parts)
            group.addTask { [finished, wake, places = parts.places, sender = endpoint.sender] in
                await places.enter()
                let answer = await Self.send(payload, by: sender, reports)
                places.leave()
                finished.put(answer.map { Sent(due: next.due, answer: $0, isProbe: isProbe) })
                wake.yield()
            }
        }
    }
}

extension SendingTurn {
    /// How many events of replays may be on the way now: a quarter of the endpoint's concurrency, and none while
    /// something fresh is due.
    private var replayPlaces: Int {
        let now = ContinuousClock.now
        guard maySend, results.health.state == .working, ready.isEmpty, readAt > now, now < until - Self.margin
        else { return 0 }
        let concurrency = endpoint.settings.concurrency
        return min(max(1, concurrency / 4), concurrency - inFlight - results.count)
    }

    /// - Returns: nil: nobody knows what became of the send, because this process ended it, or what the answer reports
    ///   could not be stored. Nothing is stored then, and the event is sent again.
    static func send(
        _ payload: WebhookPayload, by sender: WebhookSender, _ reports: HandOutReports
    ) async -> DeliveryAnswer? {
        guard !Task.isCancelled else { return nil }
        guard let body = try? payload.bytes() else { return .none("the body of the event is no JSON") }
        switch await sender.send(eventID: payload.event.id.text, body: body, now: Date()) {
        case .status(let status, let retryAfter, let body):
            let answer = DeliveryAnswer(status: status, retryAfter: retryAfter)
            guard answer.result == .taken, await !reports.take(body, of: payload.event) else { return answer }
            return nil
        case .failed(let failure) where failure.word == .stopped: return nil
        case .failed(let failure): return .none("\(failure)")
        }
    }
}

/// The sends that have ended since they were last taken.
final class FinishedSends<Sent: Sendable>: Sendable {
    private let state = Mutex<(sent: [Sent], ended: Int)>((sent: [], ended: 0))

    /// - Parameter sent: nil: the send was cancelled.
    func put(_ sent: Sent?) {
        state.withLock { state in
            if let sent { state.sent.append(sent) }
            state.ended += 1
        }
    }

    func take() -> (sent: [Sent], ended: Int) {
        state.withLock { state in
            defer { state = (sent: [], ended: 0) }
            return state
        }
    }
}
