import Hummingbird

/// Notifications that the store holds: `/control/notifications`; and the store's settings: `/control/settings`.
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
        router.post("/control/notifications/{uuid}/attempts") { request, context in
            let uuid = context.parameters.get("uuid") ?? ""
            return try await answer(request) { (attempt: AttemptRequest) async throws(ControlError) in
                let notification = try store.ledger.add(
                    .init(
                        attemptDate: attempt.attemptDate ?? AppleDate.now,
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
    }
}
