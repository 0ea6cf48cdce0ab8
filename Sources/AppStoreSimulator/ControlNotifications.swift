import Hummingbird

/// The store's notifications, `/control/notifications`, its settings, `/control/settings`, and its clock,
/// `/control/clock`.
extension ControlRoutes {
    func addNotifications(to router: Router<SimulatorContext>) {
        router.post("/control/notifications") { request, _ in
            try await answer(request) { (notification: NotificationRequest) async throws(ControlError) in
                let (notification, payload) = try store.hold(notification)
                return json(.created, capacity: 16_000) { body in
                    notification.write(&body)
                    body.field("signedPayload", payload)
                }
            }
        }
        router.get("/control/notifications") { request, _ in
            try await answer { () throws(ControlError) -> Response in
                let skip = try number("skip", of: request) ?? 0
                let notifications = store.ledger.read { Array($0.notifications.dropFirst(skip)) }
                return json(capacity: 64 + notifications.count * 256) { body in
                    body.field(
                        "notifications",
                        array: { array in
                            for notification in notifications { array.element { notification.write(&$0) } }
                        })
                }
            }
        }
        router.post("/control/notifications/faults") { request, _ in
            try await answer(request) { (fault: NotificationFaultRequest) async throws(ControlError) in
                let id = try store.add(fault)
                return json(.created) { $0.field("id", id) }
            }
        }
        router.get("/control/notifications/faults") { _, _ in
            json { body in
                body.field(
                    "faults",
                    array: { array in
                        for rule in store.ledger.notificationFaults.rules { array.element { write(rule, &$0) } }
                    })
            }
        }
        router.delete("/control/notifications/faults") { _, _ in
            let removed = store.ledger.notificationFaults.removeAll()
            return json { $0.field("removed", removed) }
        }
        router.post("/control/notifications/{uuid}/attempts") { request, context in
            let uuid = context.parameters.get("uuid") ?? ""
            return try await answer(request) { (attempt: AttemptRequest) async throws(ControlError) in
                let notification = try store.ledger.add(
                    .init(
                        attemptDate: attempt.attemptDate ?? store.clock.now,
                        sendAttemptResult: attempt.sendAttemptResult),
                    to: uuid)
                return json(.created) { notification.write(&$0) }
            }
        }
    }

    func addSettings(to router: Router<SimulatorContext>) {
        router.get("/control/settings") { _, _ in json { write(store.ledger.settings, &$0) } }
        router.put("/control/settings") { request, _ in
            try await answer(request) { (change: SettingsRequest) async throws(ControlError) in
                let settings = try store.ledger.set(change)
                return json { write(settings, &$0) }
            }
        }
    }

    /// The notifications that a request made.
    func write(_ notifications: [HeldNotification], _ json: inout JSONWriter) {
        json.field(
            "notifications",
            array: { array in
                for notification in notifications { array.element { notification.write(&$0) } }
            })
    }

    private func write(_ rule: FaultRules<NotificationFaultRequest>.Rule, _ json: inout JSONWriter) {
        json.field("id", rule.id)
        json.field("kind", rule.request.kind.rawValue)
        json.field("app", ifPresent: rule.request.app)
        json.field("notificationType", ifPresent: rule.request.notificationType)
        json.field("count", ifPresent: rule.request.count)
        json.field("remaining", ifPresent: rule.remaining)
        if let percent = rule.request.percent { json.field("percent", percent) }
        json.field("delay", ifPresent: rule.request.delay)
        json.field("fired", rule.fired)
    }

    func addClock(to router: Router<SimulatorContext>) {
        router.get("/control/clock") { _, _ in json { write(now: store.clock.now, &$0) } }
        router.post("/control/clock") { request, _ in
            try await answer(request) { (wanted: ClockRequest) async throws(ControlError) in
                let now = try store.advance(wanted)
                return json { write(now: now, &$0) }
            }
        }
    }

    private func write(now: Int64, _ json: inout JSONWriter) {
        json.field("now", now)
        json.field("time", AppleDate(milliseconds: now).rfc3339)
        json.field("offsetMilliseconds", store.clock.offsetMilliseconds)
    }

    private func write(_ settings: StoreSettings, _ json: inout JSONWriter) {
        switch settings.rateLimits {
        case .off: json.field("rateLimits", "off")
        case .apple: json.field("rateLimits", "apple")
        case .custom(let limits):
            json.field(
                "rateLimits",
                object: { object in
                    for (name, limit) in limits.sorted(by: { $0.key < $1.key }) { object.field(name, limit) }
                })
        }
        json.field("propagationMilliseconds", settings.propagationMilliseconds)
        json.field("massExtensionMilliseconds", settings.massExtensionMilliseconds)
        json.field("paginationTokenMilliseconds", settings.paginationTokenMilliseconds)
        json.field("subscriptionPeriod", ifPresent: settings.subscriptionPeriod)
        json.field("notificationURL", ifPresent: settings.notificationURL ?? store.ledger.notificationURL)
        json.field("notificationVersion", settings.notificationVersion ?? 2)
        json.field("notificationTimeoutMilliseconds", settings.notificationTimeoutMilliseconds ?? 10_000)
    }
}
