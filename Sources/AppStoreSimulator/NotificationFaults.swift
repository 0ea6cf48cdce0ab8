import Synchronization

/// A fault of the next notifications on their way: the body of `POST /control/notifications/faults`.
///
/// `count`: the fault fires for the next that many matching notifications. `percent`: for each with that probability.
/// Both: with that probability until the fault has fired `count` times. Neither: until the fault is deleted.
package struct NotificationFaultRequest: ControlBody, Sendable {
    package enum Kind: String, Codable, Sendable, CaseIterable {
        /// The notification is never sent, and no attempt stands in the notification history.
        case lose
        /// Each attempt fails as if the app's server did not answer: nothing is sent, and the attempts stand in the
        /// notification history as `TIMED_OUT`.
        case fail
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
    private let state: Mutex<FaultRules<NotificationFaultRequest>>

    init(seed: UInt64) {
        state = Mutex(FaultRules(seed: seed))
    }

    /// Adds a rule, whose `app` is a bundle id, and returns its id.
    func add(_ request: NotificationFaultRequest) throws(ControlError) -> Int {
        try state.withLock { rules throws(ControlError) in try rules.add(request) }
    }

    /// Removes all rules and returns how many there were.
    func removeAll() -> Int { state.withLock { $0.removeAll() } }

    var rules: [FaultRules<NotificationFaultRequest>.Rule] { state.withLock(\.rules) }

    /// The delivery of a new notification as the faults leave it.
    func apply(to delivery: Delivery, of type: String, app: String) -> Delivery {
        guard let fault = next(type, app) else { return delivery }
        var delivery = delivery
        delivery.fault = fault.kind.rawValue
        switch fault.kind {
        case .lose: delivery.due = nil
        case .fail: delivery.isUnanswered = true
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
                guard request.app ?? app == app, request.notificationType ?? type == type, state.fires(index)
                else { continue }
                return request
            }
            return nil
        }
    }
}
