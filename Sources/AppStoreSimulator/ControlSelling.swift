import Hummingbird
import NIOCore

/// Selling, refunding, signing: `/control/apps`, `/control/purchases`, `/control/receipts`, `/control/forgeries`.
extension ControlRoutes {
    func addSelling(to router: Router<SimulatorContext>) {
        router.post("/control/apps") { request, _ in
            try await answer(request) { (app: RegisteredApp) async throws(ControlError) in
                try app.validate()
                try store.ledger.register(app)
                return json(.created) { body in
                    body.field("app", app.app)
                    body.field("bundleId", app.bundleId)
                }
            }
        }
        router.post("/control/purchases") { request, _ in
            try await answer(request) { (sale: SaleRequest) async throws(ControlError) in
                let sales = try await store.sell(sale)
                guard sale.count != nil else {
                    return json(.created, capacity: 8192) { write(sales[0], &$0) }
                }
                return json(.created, capacity: sales.count * 7000) { body in
                    body.field(
                        "purchases",
                        array: { array in
                            for sale in sales { array.element { write(sale, &$0) } }
                        })
                }
            }
        }
        router.get("/control/purchases/{id}") { _, context in
            let id = context.parameters.get("id") ?? ""
            return try await answer { () throws(ControlError) in
                guard let purchase = store.ledger.purchase(id) else {
                    throw ControlError(status: 404, field: "id", "no such purchase: \(id)")
                }
                return json { write(purchase, &$0) }
            }
        }
        router.post("/control/purchases/{id}/refund") { request, context in
            let id = context.parameters.get("id") ?? ""
            return try await answer(request) { (refund: RefundRequest) async throws(ControlError) in
                let purchase = try store.ledger.refund(id, refund)
                return json { write(purchase, &$0) }
            }
        }
        router.delete("/control/purchases/{id}/refund") { _, context in
            let id = context.parameters.get("id") ?? ""
            return try await answer { () throws(ControlError) in
                let purchase = try store.ledger.reverseRefund(id)
                return json { write(purchase, &$0) }
            }
        }
    }

    func addQuestions(to router: Router<SimulatorContext>) {
        router.post("/control/purchases/{id}/consumption-request") { request, context in
            let id = context.parameters.get("id") ?? ""
            return try await answer(request) { (question: ConsumptionQuestion) async throws(ControlError) in
                let reasons = NotificationType.consumptionReasons
                guard reasons.contains(question.consumptionRequestReason ?? reasons[0]) else {
                    throw ControlError(
                        field: "consumptionRequestReason", "must be one of \(reasons.joined(separator: ", "))")
                }
                let notifications = try store.ledger.tell(
                    id, .consumptionRequest, reason: question.consumptionRequestReason ?? reasons[0])
                return json { write(notifications, &$0) }
            }
        }
        router.post("/control/purchases/{id}/refund-decline") { _, context in
            let id = context.parameters.get("id") ?? ""
            return try await answer { () throws(ControlError) in
                let notifications = try store.ledger.tell(id, .refundDeclined)
                return json { write(notifications, &$0) }
            }
        }
    }

    func addProofs(to router: Router<SimulatorContext>) {
        router.post("/control/purchases/{id}/sign") { request, context in
            let id = context.parameters.get("id") ?? ""
            return try await answer(request) { (sign: SignRequest) async throws(ControlError) in
                let token = try store.sign(id, signedDate: sign.signedDate)
                return json(capacity: 8192) { $0.field("signedTransaction", token) }
            }
        }
        router.post("/control/receipts") { request, _ in
            try await answer(request) { (receipt: ReceiptRequest) async throws(ControlError) in
                let receipt = try store.receipt(receipt)
                return json(.created, capacity: 4096) { $0.field("receipt", receipt) }
            }
        }
        router.post("/control/forgeries") { request, _ in
            try await answer(request) { (forgery: ForgeryRequest) async throws(ControlError) in
                let (forgery, token) = try store.forge(forgery)
                return json(.created, capacity: 8192) { body in
                    body.field("transactionId", forgery.transactionId)
                    body.field("signedTransaction", token)
                }
            }
        }
    }

    private func write(_ sale: Sale, _ json: inout JSONWriter) {
        json.field("transactionId", sale.purchase.transactionId)
        json.field("originalTransactionId", sale.purchase.originalTransactionId)
        json.field("signedTransaction", sale.signedTransaction)
        json.field("receipt", sale.receipt)
        json.field("appTransactionId", ifPresent: sale.purchase.appTransactionId)
        json.field("customer", sale.purchase.account)
        json.field("orderId", ifPresent: sale.purchase.order)
        guard !sale.family.isEmpty else { return }
        json.field("family", array: { array in for share in sale.family { array.element { write(share, &$0) } } })
    }

    func write(_ purchase: Purchase, _ json: inout JSONWriter) {
        json.field("transactionId", purchase.transactionId)
        json.field("originalTransactionId", purchase.originalTransactionId)
        json.field("app", purchase.app)
        json.field("productId", purchase.productId)
        json.field("quantity", purchase.quantity)
        json.field("environment", purchase.environment.rawValue)
        json.field("appAccountToken", ifPresent: purchase.appAccountToken)
        json.field("purchaseDate", purchase.purchaseDate)
        json.field("type", purchase.type.rawValue)
        json.field("revoked", purchase.revoked)
        json.field("revocationDate", ifPresent: purchase.revocationDate)
        json.field("customer", purchase.account)
        json.field("appTransactionId", ifPresent: purchase.appTransactionId)
        json.field("orderId", ifPresent: purchase.order)
        json.field("expiresDate", ifPresent: purchase.expiresDate)
        json.field("familyOf", ifPresent: purchase.familyOf)
        json.field("visibleAt", ifPresent: purchase.visibleAt)
        json.field("isUpgraded", purchase.isUpgraded == true)
        json.field("finished", purchase.finishedAt != nil)
        json.field("finishedAt", ifPresent: purchase.finishedAt)
        json.field("valid", true)
    }
}

/// The body of `POST /control/purchases/{id}/consumption-request`.
private struct ConsumptionQuestion: ControlBody, Sendable {
    /// Default `UNINTENDED_PURCHASE`.
    var consumptionRequestReason: String?

    enum CodingKeys: String, CodingKey, CaseIterable {
        case consumptionRequestReason
    }
}

/// The body of `POST /control/purchases/{id}/sign`.
private struct SignRequest: ControlBody, Sendable {
    /// UNIX milliseconds; default now.
    var signedDate: Int64?

    enum CodingKeys: String, CodingKey, CaseIterable {
        case signedDate
    }
}
