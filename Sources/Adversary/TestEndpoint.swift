import FaultProxy
import Foundation
import Ledger
import Postgres
import Settings

/// An endpoint of a drill's app: a receiver, and the proxy before it.
struct TestEndpoint: Sendable {
    /// Webhooks on the way at a time.
    static let concurrency = 16
    static let timeoutSeconds = 2
    /// The one that signs at first, and the one that follows it.
    static let secrets = ["the first secret of the drills", "the next secret of the drills."].map { text in
        WebhookSecret.prefix + Data(text.utf8).base64EncodedString()
    }

    let key: EndpointKey
    let receiver: EventReceiver
    let proxy: FaultProxy

    /// Starts so many receivers.
    ///
    /// - Parameter clock: the time by which they judge timestamps.
    static func start(_ count: Int, clock: @escaping @Sendable () -> Date) async throws -> [TestEndpoint] {
        var endpoints: [TestEndpoint] = []
        for number in 0..<count {
            let receiver = try await EventReceiver.start(
                secrets: [secrets[0]].compactMap(WebhookSecret.init), clock: clock)
            endpoints.append(
                TestEndpoint(
                    key: EndpointKey(appID: PurchaseGenerator.app, name: "shop-\(number + 1)"), receiver: receiver,
                    proxy: try FaultProxy(to: receiver.url)))
        }
        return endpoints
    }

    func end() async {
        proxy.end()
        await receiver.stop()
    }

    /// Its section of the configuration file.
    ///
    /// - Parameter secrets: one or two, which sign each webhook.
    func section(secrets: [String]) -> [String: Any] {
        [
            "name": key.name, "url": proxy.url(receiver.url), "secret": secrets.joined(separator: " "),
            "timeout": "\(Self.timeoutSeconds)s", "concurrency": Self.concurrency,
            "allowPrivate": ["127.0.0.1"],
        ]
    }
}

extension DrillContext {
    var dispatchers: [Member] { world.members(.dispatcher) }
    var endpoints: [TestEndpoint] { world.endpoints }

    /// The words in the database for the state of an endpoint, such as `working`.
    func state(of endpoint: TestEndpoint) async throws -> String {
        try await world.texts("select state from endpoints where id = '\(endpoint.key.id)'").first ?? ""
    }

    /// The sum of a counter of sends over the dispatchers that run.
    func attempts(_ outcome: String) async -> Int {
        var count = 0.0
        for dispatcher in dispatchers {
            count +=
                await world.metric("makegood_delivery_attempts_total", "outcome=\"\(outcome)\"", of: dispatcher) ?? 0
        }
        return Int(count)
    }

    /// Waits until every endpoint has every event, and compares what each got with the events of the database.
    func auditDeliveries() async throws {
        guard !endpoints.isEmpty else { return }
        try await expect("every event is delivered", within: .seconds(150)) {
            try await world.count(DeliveryAudit.openCount) == 0
        }
        let database = world.patientDatabase()
        for endpoint in endpoints {
            let name = endpoint.key.name
            let audit = try await DeliveryAudit.run(endpoint.receiver, of: endpoint.key, in: database)
            expect(
                "\(name) took each event in order", audit.defects.isEmpty && audit.events > 0,
                "\(audit.events) events\(audit.defects.map { "; \($0)" }.joined())")
            expect("\(name) trusted every signature", audit.refusals == 0, "\(audit.refusals) refused")
            // A machine that stands still for the length of a turn ends the turn, as a kill does.
            let most = (deliveryInterruptions + 1) * TestEndpoint.concurrency
            expect("\(name) got at most \(most) again", audit.repeats <= most, "\(audit.repeats)")
        }
        await database.close()
        let resting = try await world.texts("select name || ' ' || state from endpoints where state <> 'working'")
        expect("every endpoint works, and no person did anything", resting.isEmpty, resting.joined(separator: ", "))
    }
}
