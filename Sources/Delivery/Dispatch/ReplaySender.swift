import Foundation
import Ledger
import Logging
import Purchases
import Service
import Settings

/// The replays of one endpoint during one turn: it sends their events where the turn has places left.
///
/// The events go in the order of the feed, those of one user one after the other. An event that the endpoint does not
/// take stops its replay alone, which goes on with the same event after a gap. Neither the deliveries nor the health of the
/// endpoint change: an old event that a receiver refuses says nothing of the fresh ones. A replay moves on once results
/// are stored, so that a crash repeats at most what is on the way.
struct ReplaySender {
    static let pageMax = 64
    /// How long no replay means that there is none.
    static let readInterval: Duration = .milliseconds(500)
    /// How long a result waits for others.
    private static let storeInterval: Duration = .milliseconds(10)
    /// The pause after a write that the database did not take.
    private static let retryPause: Duration = .milliseconds(200)
    /// The pause after a write that the database refused.
    private static let defectPause: Duration = .seconds(60)

    private enum State {
        case waiting, onTheWay, taken
        case refused(DeliveryAnswer)
    }

    private struct Item {
        let place: Statements.EventPlace
        let event: Event
        let user: RevealedUser?
        var state: State

        var isTaken: Bool { if case .taken = state { true } else { false } }
        var refusal: DeliveryAnswer? { if case .refused(let answer) = state { answer } else { nil } }
    }

    private let parts: SendingTurn.Parts
    private let wake: AsyncStream<Void>.Continuation
    private let schedule: DeliverySchedule
    private let finished = FinishedSends<(id: UUID, answer: DeliveryAnswer?)>()
    /// Nil: no replay is in hand.
    private var page: ReplayPage?
    /// What is left of the page, in the order of the feed.
    private var items: [Item] = []
    /// Up to here the replay is stored.
    private var place: Statements.EventPlace?
    /// Failures of the first item.
    private var attempts = 0
    private(set) var inFlight = 0
    private var readAt = ContinuousClock.now
    private var storeAt = ContinuousClock.now

    init(_ parts: SendingTurn.Parts, wake: AsyncStream<Void>.Continuation) {
        self.parts = parts
        self.wake = wake
        schedule = DeliverySchedule(scale: parts.ledger.schedule.scale)
    }

    /// Whether a replay is in hand.
    var isBusy: Bool { page != nil || inFlight > 0 }

    /// Takes results, stores them, and sends what the turn has places for.
    ///
    /// - Parameter places: how many events of replays may be on the way or wait to be stored. 0 or less: something fresh
    ///   is due, or nothing may be sent.
    mutating func step(
        _ group: inout DiscardingTaskGroup, to endpoint: DefinedEndpoint, places: Int, cursor: EventCursor,
        pace: inout SendPace
    ) async {
        takeFinished(&pace)
        if ContinuousClock.now >= storeAt { await store(endpoint) }
        guard places > 0 else { return }
        await read(endpoint)
        send(&group, to: endpoint, places: places, cursor: cursor, pace: &pace)
    }

    /// Stores what is left at the end of a turn. What the database does not take is sent again.
    mutating func storeRest(_ endpoint: DefinedEndpoint, pace: inout SendPace) async {
        takeFinished(&pace)
        await store(endpoint)
    }

    private mutating func takeFinished(_ pace: inout SendPace) {
        let (sent, ended) = finished.take()
        inFlight -= ended
        for (id, answer) in sent {
            if let wait = answer?.retryAfter { pace.rest(until: .now + wait) }
            guard let index = items.firstIndex(where: { $0.event.id == id }) else { continue }
            items[index].state = answer.map { $0.result == .taken ? .taken : .refused($0) } ?? .waiting
        }
    }

    private mutating func store(_ endpoint: DefinedEndpoint) async {
        guard let page, let place else { return }
        let taken = items.prefix(while: \.isTaken)
        let next = items.dropFirst(taken.count).first
        let refusal = inFlight == 0 ? next?.refusal : nil
        guard next == nil || !taken.isEmpty || refusal != nil else { return }
        let failure = refusal.map { answer in
            // Without a beginning of the failures there is always a next time.
            let retryIn = schedule.retryIn(
                afterAttempts: taken.isEmpty ? attempts : 0, failingSince: nil, now: Date(),
                retryAfter: answer.retryAfter, random: Double.random(in: 0..<1))
            return (reason: answer.reason ?? "", retryIn: retryIn ?? .zero)
        }
        let progress = ReplayProgress(
            replay: page.replay, place: next == nil ? page.end : taken.last?.place ?? place, sent: taken.count,
            isDone: next == nil && page.isLast, failure: failure)
        do throws(LedgerError) {
            let isStored = try await parts.ledger.run(Statements.storeReplay, progress).first == true
            storeAt = .now + Self.storeInterval
            guard isStored, next != nil, failure == nil else {
                if isStored, progress.isDone {
                    parts.logger.notice(
                        "a replay is done", metadata: LogKeys.endpoint(endpoint.key, ["replay": "\(page.replay)"]))
                }
                drop(readIn: .zero)
                return
            }
            items.removeFirst(taken.count)
            (self.place, attempts) = (progress.place, 0)
        } catch {
            let metadata = LogKeys.endpoint(endpoint.key, LogKeys.error(error))
            storeAt = .now + Self.retryPause
            guard !error.isRetryable else {
                return parts.logger.debug("the progress of a replay was not stored yet", metadata: metadata)
            }
            parts.logger.error("the database refused the progress of a replay: report this defect", metadata: metadata)
            drop(readIn: Self.defectPause)
        }
    }

    private mutating func drop(readIn pause: Duration) {
        (page, place, attempts, items) = (nil, nil, 0, [])
        readAt = .now + pause
    }

    private mutating func read(_ endpoint: DefinedEndpoint) async {
        guard page == nil, inFlight == 0, ContinuousClock.now >= readAt else { return }
        do {
            guard let page = try await parts.ledger.replayPage(of: endpoint.filter, limit: Self.pageMax) else {
                readAt = .now + Self.readInterval
                return
            }
            let users = try await parts.reveal(page.events.map(\.event), for: endpoint)
            items = page.events.map { place, event in
                let user = users[event.user]
                // A backend that gave goods to an unreadable user would give them to the wrong one.
                let state: State =
                    user == .unreadable
                    ? .refused(.none("the user was written with a key that users.protect does not list: add the key"))
                    : .waiting
                return Item(place: place, event: event, user: user, state: state)
            }
            (self.page, place, attempts) = (page, page.start, page.attempts)
        } catch {
            parts.logger.debug("events of a replay were not read", metadata: LogKeys.error(error))
            readAt = .now + Self.readInterval
        }
    }

    private mutating func send(
        _ group: inout DiscardingTaskGroup, to endpoint: DefinedEndpoint, places: Int, cursor: EventCursor,
        pace: inout SendPace
    ) {
        guard let page else { return }
        var notStored = 0
        var users: Set<UserName> = []
        for index in items.indices {
            let item = items[index]
            switch item.state {
            case .refused: return
            case .taken: notStored += 1
            case .onTheWay:
                notStored += 1
                users.insert(item.event.user)
            case .waiting:
                guard notStored < places, !users.contains(item.event.user),
                    pace.take(endpoint.settings.rate, now: .now)
                else { return }
                items[index].state = .onTheWay
                notStored += 1
                inFlight += 1
                users.insert(item.event.user)
                let payload = WebhookPayload(
                    item.event, user: item.user, endpoint: endpoint.key.name, sequence: nil, previousID: nil,
                    cursor: cursor, attempt: (index == 0 ? attempts : 0) + 1, replay: page.replay)
                let reports = HandOutReports(endpoint.key, parts)
                group.addTask { [finished, wake, places = parts.places, sender = endpoint.sender] in
                    await places.enter()
                    let answer = await SendingTurn.send(payload, by: sender, reports)
                    places.leave()
                    finished.put((id: payload.event.id, answer: answer))
                    wake.yield()
                }
            }
        }
    }
}
