import Encoding
import Foundation
import Ledger
import Logging
import Purchases
import Service

/// The results of one turn until they are stored, and the health of its endpoint.
///
/// A result is a delivery that goes on, or a delivery that is due again later. This dispatcher stores results also after
/// another one has taken the turn; the dispatcher that has the turn stores the health.
struct ResultStore {
    /// So many results are stored at once.
    private static let batchMax = 128
    /// How long a result waits for others.
    private static let batchWait: Duration = .milliseconds(10)
    /// The pause after a write that the database did not take.
    private static let retryPause: Duration = .milliseconds(200)
    /// How long results are kept for a database that is away. After that they are lost, and their events are sent again.
    private static let patience: Duration = .seconds(45)
    /// How often an endpoint that works is noted to work.
    private static let noteInterval: Duration = .seconds(10)

    private let endpoint: EndpointKey
    private let holder: UUID
    private let parts: SendingTurn.Parts
    private let schedule: DeliverySchedule
    private(set) var health = EndpointHealth()
    /// Whether this turn has sent the one event that a failing endpoint gets.
    var hasProbed = false
    /// Whether another dispatcher has taken the turn.
    private(set) var isTurnLost = false
    private var waiting: [DeliveryResult] = []
    private var oldestAt = ContinuousClock.now
    private var triesAt = ContinuousClock.now
    /// As it is in the row.
    private var storedHealth = EndpointHealth()
    private var storedAt = ContinuousClock.now
    private var probeIn: Duration?
    private var lastAnswer: DeliveryAnswer?
    /// Whether an event was taken since the health was stored.
    private var wasTaken = false

    init(endpoint: EndpointKey, holder: UUID, _ parts: SendingTurn.Parts) {
        self.endpoint = endpoint
        self.holder = holder
        self.parts = parts
        schedule = DeliverySchedule(scale: parts.ledger.schedule.scale)
    }

    var count: Int { waiting.count }
    var isEmpty: Bool { waiting.isEmpty }

    /// Takes over the row's health, which a person may have changed.
    mutating func follow(_ row: EndpointTurn) {
        let isNew = row.state != storedHealth.state || row.failures != storedHealth.failures
        guard isNew, health == storedHealth else { return }
        health = EndpointHealth(
            state: row.state, failures: row.failures, failingSince: row.failingSince, probes: row.probes)
        storedHealth = health
        hasProbed = false
    }

    /// Whether the results should be stored now: enough have come, or nothing is in flight that others could wait for.
    func isDue(inFlight: Int) -> Bool {
        let now = ContinuousClock.now
        guard !waiting.isEmpty || health != storedHealth || (wasTaken && now - storedAt > Self.noteInterval)
        else { return false }
        guard now >= triesAt else { return false }
        return inFlight == 0 || waiting.count >= Self.batchMax || now - oldestAt >= Self.batchWait
    }

    /// Takes results in the order in which they came.
    mutating func add(_ sent: [SendingTurn.Sent], pace: inout SendPace) {
        guard !sent.isEmpty else { return }
        if waiting.isEmpty { oldestAt = .now }
        for sent in sent {
            guard let answer = sent.answer else {
                add(sent, eventID: nil, .passed)
                continue
            }
            let now = Date()
            let scale = schedule.scale
            health = health.after(answer.result, isProbe: sent.isProbe, at: now, scale: scale)
            lastAnswer = answer
            if let wait = answer.retryAfter { pace.rest(until: .now + wait) }
            guard answer.result != .taken else {
                wasTaken = true
                if health.state == .working { hasProbed = false }
                let at = sent.due.event?.at ?? now
                parts.metrics.record(.seconds(max(0, now.timeIntervalSince(at))), endpoint)
                parts.metrics.count(.delivered, endpoint)
                add(sent, eventID: sent.due.event?.id, .delivered)
                continue
            }
            if let gap = health.probeIn(random: Double.random(in: 0..<1), scale: scale) {
                probeIn = max(gap, answer.retryAfter ?? .zero)
                hasProbed = true
            }
            let retryIn = retryIn(sent, answer, now)
            if retryIn == nil { tellParked(sent, answer) }
            parts.metrics.count(retryIn == nil ? .parked : .failed, endpoint)
            add(sent, eventID: sent.due.event?.id, .failed(reason: answer.reason ?? "", retryIn: retryIn))
        }
    }

    /// An event that an endpoint refuses while everything is refused has no gaps of its own: it is due by the next
    /// probe, and its user waits no longer than others when the endpoint works again.
    private func retryIn(_ sent: SendingTurn.Sent, _ answer: DeliveryAnswer, _ now: Date) -> Duration? {
        if sent.isProbe || answer.result == .gone {
            let gap = health.probeIn(random: 0, scale: schedule.scale) ?? EndpointHealth.probeGapMin * schedule.scale
            return max(gap, answer.retryAfter ?? .zero)
        }
        return schedule.retryIn(
            afterAttempts: sent.due.attempts, failingSince: sent.due.failingSince, now: now,
            retryAfter: answer.retryAfter, random: Double.random(in: 0..<1))
    }

    private mutating func add(_ sent: SendingTurn.Sent, eventID: UUID?, _ outcome: DeliveryResult.Outcome) {
        waiting.append(
            DeliveryResult(
                endpoint: endpoint.id, stream: sent.due.stream, sequence: sent.due.sequence, eventID: eventID,
                outcome: outcome))
    }

    /// Stores results and the health. Results that the database refuses are a defect of the program: their streams stay
    /// in hand for the rest of the turn, so that the turn does not send the same events again and again.
    ///
    /// - Parameter isLast: whether the turn ends.
    /// - Returns: the streams that are free again.
    mutating func store(isLast: Bool = false) async -> [Int] {
        let batch = Array(waiting.prefix(Self.batchMax))
        var free: [Int] = []
        if !batch.isEmpty {
            do throws(LedgerError) {
                _ = try await parts.ledger.run(Statements.storeResults, batch)
                free = batch.map(\.stream)
            } catch {
                guard !error.isRetryable else {
                    postpone(error)
                    return []
                }
                tellRefused(error)
            }
            waiting.removeFirst(batch.count)
        }
        await storeHealth(isLast: isLast)
        return free
    }

    /// Stores what is left at the end of a turn, as long as the patience with the database lasts.
    mutating func storeRest() async {
        let start = ContinuousClock.now
        while !waiting.isEmpty || (!isTurnLost && (health != storedHealth || wasTaken)) {
            _ = await store(isLast: true)
            guard ContinuousClock.now - start < Self.patience else { return }
            if ContinuousClock.now < triesAt { try? await Task.sleep(until: triesAt) }
        }
    }

    private mutating func storeHealth(isLast: Bool) async {
        let isOld = isLast || ContinuousClock.now - storedAt > Self.noteInterval
        guard !isTurnLost, health != storedHealth || (wasTaken && isOld) else { return }
        let change = EndpointHealthChange(
            endpoint: endpoint.id, holder: holder, state: health.state, failures: health.failures,
            probes: health.probes, failingSince: health.failingSince,
            probeIn: health.state == .failing ? probeIn ?? .zero : nil, reason: health.suspension?.rawValue,
            lastStatus: lastAnswer?.status, lastError: lastAnswer?.reason)
        do throws(LedgerError) {
            guard try await parts.ledger.run(Statements.storeHealth, change).first == true else {
                isTurnLost = true
                return
            }
        } catch {
            guard !error.isRetryable else { return postpone(error) }
            tellRefused(error)
            isTurnLost = true
            return
        }
        if health.state != storedHealth.state { tellState() }
        (storedHealth, storedAt, wasTaken) = (health, .now, false)
    }

    private mutating func postpone(_ error: LedgerError) {
        triesAt = .now + Self.retryPause
        parts.logger.debug("results of deliveries were not stored yet", metadata: LogKeys.error(error))
    }

    // MARK: News

    private func tellRefused(_ error: LedgerError) {
        parts.logger.error(
            "the database refused results of deliveries: their events are sent again; report this defect",
            metadata: LogKeys.endpoint(endpoint, LogKeys.error(error)))
    }

    private func tellParked(_ sent: SendingTurn.Sent, _ answer: DeliveryAnswer) {
        parts.logger.error(
            "an event was not taken for 30 days, and its user's later events wait: makegood endpoints redrive or skip",
            metadata: LogKeys.endpoint(
                endpoint, ["event.id": "\(sent.due.event?.id.text ?? "")", "reason": "\(answer.reason ?? "")"]))
    }

    /// Logs a new state of the endpoint, once.
    private func tellState() {
        let metadata = LogKeys.endpoint(endpoint, ["reason": "\(lastAnswer?.reason ?? "")"])
        switch (health.state, health.suspension) {
        case (.working, _):
            parts.logger.notice("an endpoint takes events again", metadata: LogKeys.endpoint(endpoint))
        case (.failing, _):
            parts.logger.error(
                "an endpoint takes no events: they wait, and it is tried again by itself; mend the receiver",
                metadata: metadata)
        case (.suspended, .gone):
            parts.logger.error(
                "an endpoint answered 410 and is suspended, its events wait: mend it, then makegood endpoints resume",
                metadata: metadata)
        case (.suspended, _):
            parts.logger.error(
                "an endpoint took nothing for 30 days and is suspended: mend it, then makegood endpoints resume",
                metadata: metadata)
        }
    }
}

extension LogKeys {
    static func endpoint(_ key: EndpointKey, _ more: Logger.Metadata = [:]) -> Logger.Metadata {
        more.merging(["app.id": "\(key.appID)", "endpoint": "\(key.name)"]) { first, _ in first }
    }
}
