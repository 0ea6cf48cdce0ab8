import Synchronization

/// A fault of the next notifications on their way: the body of `POST /control/notifications/faults`.
///
/// `count`: the fault fires for the next that many matching notifications. `percent`: for each with that probability.
/// Both: with that probability until the fault has fired `count` times. Neither: until the fault is deleted.
package struct NotificationFaultRequest: ControlBody, Sendable {
    package enum Kind: String, Codable, Sendable, CaseIterable {
        /// The notification is never sent, and no attempt stands in the notification history.
        case lose
        /// The notification is sent again after it arrived.
        case double
        /// The first attempt waits for `delay` on the store's clock.
        case delay
        /// The next notification of the same app goes first; after an hour on the store's clock nothing waits.
        case reorder
    }

    package var kind: Kind
    /// Bundle id or registered name; default: every app.
    package var app: String?
    /// Default: every type.
    package var notificationType: String?
    /// 1 to 1,000,000,000.
    package var count: Int?
    /// Above 0, up to 100.
    package var percent: Double?
    /// Starts the random numbers of all these faults anew.
    package var seed: Int64?
    /// `delay` only: an ISO 8601 duration.
    package var delay: String?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case kind, app, notificationType, count, percent, seed, delay
    }

    package static let fractions: Set<String> = ["percent"]

    package init(_ kind: Kind, notificationType: String? = nil, count: Int? = nil, delay: String? = nil) {
        self.kind = kind
        self.notificationType = notificationType
        self.count = count
        self.delay = delay
    }

    func validate() throws(ControlError) {
        if let app { try SaleRequest.check(app, "app") }
        if let notificationType, NotificationType(rawValue: notificationType) == nil {
            throw ControlError(field: "notificationType", "is not one of Apple's types")
        }
        if let count, !(1...1_000_000_000).contains(count) {
            throw ControlError(field: "count", "must be 1 to 1000000000")
        }
        if let percent, !(percent > 0 && percent <= 100) {
            throw ControlError(field: "percent", "must be above 0 and at most 100")
        }
        switch (kind, delay) {
        case (.delay, let delay?):
            guard Period(delay) != nil else {
                throw ControlError(field: "delay", "must be a duration such as PT2H")
            }
        case (.delay, nil): throw ControlError(field: "delay", "is missing")
        case (_, .some): throw ControlError(field: "delay", "does not belong to the kind \(kind.rawValue)")
        case (_, nil): break
        }
    }
}

/// The faults of notifications. Of several that match, the first one that fires is the notification's fault.
final class NotificationFaults: Sendable {
    /// How many rules may stand at once.
    static let rulesMax = 1000

    /// A rule, and how often it has fired.
    struct Rule: Sendable {
        let id: Int
        let request: NotificationFaultRequest
        var remaining: Int?
        var fired = 0
    }

    private struct State {
        var rules: [Rule] = []
        var nextId = 1
        var random: SplitMix64
    }

    private let state: Mutex<State>

    init(seed: UInt64) {
        state = Mutex(State(random: SplitMix64(seed: seed)))
    }

    /// Adds a rule, whose `app` is a bundle id, and returns its id.
    func add(_ request: NotificationFaultRequest) throws(ControlError) -> Int {
        try request.validate()
        return try state.withLock { state throws(ControlError) in
            if state.rules.count >= Self.rulesMax { state.rules.removeAll { $0.remaining == 0 } }
            guard state.rules.count < Self.rulesMax else {
                throw ControlError(status: 503, "too many faults: \(Self.rulesMax)")
            }
            if let seed = request.seed { state.random = SplitMix64(seed: UInt64(bitPattern: seed)) }
            let id = state.nextId
            state.nextId += 1
            state.rules.append(Rule(id: id, request: request, remaining: request.count))
            return id
        }
    }

    /// Removes all rules and returns how many there were.
    func removeAll() -> Int {
        state.withLock { state in
            defer { state.rules = [] }
            return state.rules.count
        }
    }

    var rules: [Rule] { state.withLock(\.rules) }

    /// The delivery of a new notification as the faults leave it.
    func apply(to delivery: Delivery, of type: String, app: String) -> Delivery {
        guard let fault = next(type, app) else { return delivery }
        var delivery = delivery
        delivery.fault = fault.kind.rawValue
        switch fault.kind {
        case .lose: delivery.due = nil
        case .double: delivery.extra = 1
        case .delay: delivery.due = delivery.due.map { fault.delay.flatMap { Period($0) }?.after($0) ?? $0 }
        case .reorder: delivery.waitsForLater = true
        }
        return delivery
    }

    private func next(_ type: String, _ app: String) -> NotificationFaultRequest? {
        state.withLock { state in
            for index in state.rules.indices {
                let request = state.rules[index].request
                guard state.rules[index].remaining != 0, request.app ?? app == app,
                    request.notificationType ?? type == type
                else { continue }
                if let percent = request.percent, state.random.unit() * 100 >= percent { continue }
                state.rules[index].fired += 1
                if let remaining = state.rules[index].remaining { state.rules[index].remaining = remaining - 1 }
                return request
            }
            return nil
        }
    }
}
