import HTTPTypes
import Hummingbird

/// The store's customers and the state of their subscriptions: `/control/customers`, `/control/subscriptions`.
extension ControlRoutes {
    func addCustomers(to router: Router<SimulatorContext>) {
        router.post("/control/customers") { request, _ in
            try await answer(request) { (customer: Customer) async throws(ControlError) in
                let customer = try store.ledger.register(customer)
                return json(.created) { write(customer.key, customer, &$0) }
            }
        }
        router.get("/control/customers") { request, _ in
            try await answer { () throws(ControlError) -> Response in
                let app = store.ledger.bundleId(of: try text("app", of: request))
                let name = try text("customer", of: request)
                var environment = StoreEnvironment.production
                if let wanted = request.uri.queryParameters["environment"] {
                    guard let known = StoreEnvironment(rawValue: String(wanted)) else {
                        throw ControlError(field: "environment", "must be Production or Sandbox")
                    }
                    environment = known
                }
                let account = Account(app: app, environment: environment, customer: name)
                let customer = store.ledger.read { store -> Customer? in
                    var customer =
                        store.customers[account] ?? Customer(app: app, customer: name, environment: environment)
                    customer.appTransactionId = store.appTransactionId(of: account)
                    return customer.appTransactionId == nil ? nil : customer
                }
                guard let customer else {
                    throw ControlError(status: 404, field: "customer", "no such customer: \(name)")
                }
                return json { write(account, customer, &$0) }
            }
        }
        router.put("/control/subscriptions/{id}/renewal") { request, context in
            let id = context.parameters.get("id") ?? ""
            return try await answer(request) { (renewal: Renewal) async throws(ControlError) in
                try store.ledger.set(renewal, of: id)
                return try subscription(id)
            }
        }
        router.post("/control/subscriptions/{id}") { request, context in
            let id = context.parameters.get("id") ?? ""
            return try await answer(request) { (change: SubscriptionRequest) async throws(ControlError) in
                let notifications = try store.ledger.change(change, of: id)
                return try subscription(id, notifications)
            }
        }
        router.get("/control/subscriptions/{id}") { _, context in
            let id = context.parameters.get("id") ?? ""
            return try await answer { () throws(ControlError) in try subscription(id) }
        }
    }

    /// A subscription with its state and its periods, newest known ones included.
    private func subscription(
        _ originalTransactionId: String, _ notifications: [HeldNotification] = []
    ) throws(ControlError) -> Response {
        let (known, life, next) = store.ledger.read { store in
            let subscription = store.subscription(originalTransactionId, now: .max)
            let life = store.lives[originalTransactionId]
            return (subscription, life, life.flatMap { subscription?.next($0)?.at })
        }
        guard let subscription = known else {
            throw ControlError(status: 404, field: "id", "no such subscription: \(originalTransactionId)")
        }
        let state = subscription.state(now: store.clock.now)
        return json { body in
            body.field("originalTransactionId", originalTransactionId)
            body.field("status", state.rawValue)
            body.field("productId", subscription.newest.productId)
            body.field("expiresDate", ifPresent: subscription.newest.expiresDate)
            body.field(
                "transactionIds",
                array: { array in for period in subscription.periods { array.element(period.transactionId) } })
            body.field("autoRenewStatus", subscription.autoRenewStatus(now: store.clock.now))
            body.field("autoRenewProductId", subscription.autoRenewProductId)
            body.field("expirationIntent", ifPresent: subscription.expirationIntent(now: store.clock.now))
            body.field("gracePeriodExpiresDate", ifPresent: subscription.renewal.gracePeriodExpiresDate)
            body.field("period", ifPresent: life?.period)
            body.field("nextStep", ifPresent: next)
            write(notifications, &body)
        }
    }

    private func text(_ name: String, of request: Request) throws(ControlError) -> String {
        guard let text = request.uri.queryParameters[Substring(name)], !text.isEmpty else {
            throw ControlError(field: name, "is missing")
        }
        return String(text)
    }

    private func write(_ account: Account, _ customer: Customer, _ json: inout JSONWriter) {
        let ids = store.ledger.read { store in
            store.positions(of: account).map { store.purchases[$0].transactionId }
        }
        json.field("app", account.app)
        json.field("customer", account.customer)
        json.field("environment", account.environment.rawValue)
        json.field("account", customer.account)
        json.field("appTransaction", customer.appTransaction)
        json.field("appTransactionId", ifPresent: customer.appTransactionId)
        json.field("transactionIds", array: { array in for id in ids { array.element(id) } })
    }
}
