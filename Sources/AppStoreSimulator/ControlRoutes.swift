import Foundation
import HTTPTypes
import Hummingbird
import NIOCore

/// The control API under `/control`: what tests and people use to sell, refund, break and count.
///
/// Every body is JSON; a wrong one is answered 400 with `{"error", "field"}`, an unknown purchase 404.
struct ControlRoutes: Sendable {
    /// The largest request that is read, in bytes.
    static let bodyMax = 1 << 20
    /// How many purchases of the ledger are written at a time.
    private static let ledgerChunk = 1000

    let store: Storefront

    func add(to router: Router<SimulatorContext>) {
        router.get("/health") { _, _ in json { $0.field("status", "ok") } }
        router.get("/control/root.der") { _, _ in
            Response(
                status: .ok, headers: [.contentType: "application/pkix-cert"],
                body: .init(byteBuffer: ByteBuffer(bytes: store.rootCertificateDER)))
        }
        router.get("/control/credentials") { _, _ in
            json { body in
                body.field("issuerId", store.credentials.issuerId)
                body.field("keyId", store.credentials.keyId)
                body.field("privateKeyPEM", store.credentials.privateKeyPEM)
                body.field("sharedSecret", store.credentials.sharedSecret)
            }
        }
        addSelling(to: router)
        addFaults(to: router)
        addReading(to: router)
    }

    private func addSelling(to router: Router<SimulatorContext>) {
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
        router.post("/control/purchases/{id}/refund") { request, context in
            let id = context.parameters.get("id") ?? ""
            return try await answer(request) { (refund: RefundRequest) async throws(ControlError) in
                let purchase = try store.ledger.refund(id, refund, now: AppleDate.now)
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

    private func addFaults(to router: Router<SimulatorContext>) {
        router.post("/control/faults") { request, _ in
            try await answer(request) { (fault: FaultRequest) async throws(ControlError) in
                let id = try store.faults.add(fault)
                return json(.created) { $0.field("id", id) }
            }
        }
        router.get("/control/faults") { _, _ in
            json { body in
                body.field(
                    "faults",
                    array: { array in
                        for rule in store.faults.rules { array.element { write(rule, &$0) } }
                    })
            }
        }
        router.delete("/control/faults") { _, _ in
            let removed = store.faults.removeAll()
            return json { $0.field("removed", removed) }
        }
        router.delete("/control/faults/{id}") { _, context in
            try await answer { () throws(ControlError) in
                guard let id = context.parameters.get("id", as: Int.self), store.faults.remove(id) else {
                    throw ControlError(status: 404, field: "id", "no such fault")
                }
                return json { $0.field("removed", 1) }
            }
        }
    }

    private func addReading(to router: Router<SimulatorContext>) {
        router.get("/control/ledger") { request, _ in
            try await answer { () throws(ControlError) in
                ledger(from: try number("skip", of: request) ?? 0)
            }
        }
        router.get("/control/calls") { request, _ in
            try await answer { () throws(ControlError) -> Response in
                let after = try number("after", of: request) ?? 0
                let limit = try number("limit", of: request) ?? CallLog.callsMax
                let calls = store.calls.calls(after: after, limit: limit)
                let open = store.calls.open
                return json(capacity: 64 + calls.count * 256) { body in
                    body.field("open", open.now)
                    body.field("openMax", open.most)
                    body.field(
                        "calls",
                        array: { array in
                            for call in calls { array.element { call.write(&$0) } }
                        })
                }
            }
        }
    }

    /// The whole ledger, written piece by piece: a million purchases need no body of 300 MB in memory.
    private func ledger(from skip: Int) -> Response {
        let counts = store.calls.counts
        let forgeries = store.ledger.forgeries
        let end = store.ledger.count
        let body = ResponseBody { writer in
            try await writer.write(ByteBuffer(string: #"{"purchases":["#))
            var position = skip
            while position < end {
                let chunk = store.ledger.purchases(from: position, limit: min(Self.ledgerChunk, end - position))
                let separator: [UInt8] = position == skip ? [] : [UInt8(ascii: ",")]
                let objects = chunk.map { purchase in JSONWriter.object { write(purchase, &$0) } }
                let joined = objects.joined(separator: [UInt8(ascii: ",")])
                try await writer.write(ByteBuffer(bytes: separator + joined))
                position += chunk.count
            }
            let rest = JSONWriter.object { body in
                body.field(
                    "forgeries",
                    array: { array in
                        for forgery in forgeries { array.element { write(forgery, &$0) } }
                    })
                body.field(
                    "calls",
                    object: { object in
                        for service in SimulatedService.allCases {
                            object.field(service.rawValue, counts[service] ?? 0)
                        }
                    })
            }
            // The rest's own opening brace becomes the comma after the list.
            try await writer.write(ByteBuffer(bytes: Array("],".utf8) + rest.dropFirst()))
            try await writer.finish(nil)
        }
        return Response(status: .ok, headers: [.contentType: "application/json"], body: body)
    }

    // MARK: Plumbing

    private func answer<Body: ControlBody & Sendable>(
        _ request: Request,
        _ body: (Body) async throws(ControlError) -> Response
    ) async throws -> Response {
        let buffer = try await request.body.collect(upTo: Self.bodyMax)
        do throws(ControlError) {
            return try await body(try Body.decode(Array(buffer.readableBytesView)))
        } catch {
            return refusal(error)
        }
    }

    private func answer(_ body: () throws(ControlError) -> Response) async throws -> Response {
        do throws(ControlError) {
            return try body()
        } catch {
            return refusal(error)
        }
    }

    private func refusal(_ error: ControlError) -> Response {
        json(.init(code: error.status)) { body in
            body.field("error", error.message)
            body.field("field", ifPresent: error.field)
        }
    }

    private func number(_ name: String, of request: Request) throws(ControlError) -> Int? {
        guard let text = request.uri.queryParameters[Substring(name)] else { return nil }
        guard let value = Int(text), value >= 0 else {
            throw ControlError(field: name, "must be a number from 0")
        }
        return value
    }

    private func json(
        _ status: HTTPResponse.Status = .ok,
        capacity: Int = 512,
        _ fill: (inout JSONWriter) -> Void
    ) -> Response {
        Response(
            status: status, headers: [.contentType: "application/json"],
            body: .init(byteBuffer: ByteBuffer(bytes: JSONWriter.object(capacity: capacity, fill))))
    }

    private func write(_ sale: Sale, _ json: inout JSONWriter) {
        json.field("transactionId", sale.purchase.transactionId)
        json.field("originalTransactionId", sale.purchase.originalTransactionId)
        json.field("signedTransaction", sale.signedTransaction)
        json.field("receipt", sale.receipt)
    }

    private func write(_ purchase: Purchase, _ json: inout JSONWriter) {
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
        json.field("valid", true)
    }

    private func write(_ forgery: Forgery, _ json: inout JSONWriter) {
        json.field("transactionId", forgery.transactionId)
        json.field("kind", forgery.kind.rawValue)
        json.field("app", forgery.app)
        json.field("productId", forgery.productId)
        json.field("valid", false)
    }

    private func write(_ rule: Faults.Rule, _ json: inout JSONWriter) {
        json.field("id", rule.id)
        json.field("endpoint", rule.request.endpoint.rawValue)
        json.field("kind", rule.request.kind.rawValue)
        json.field("environment", ifPresent: rule.request.environment?.rawValue)
        json.field("count", ifPresent: rule.request.count)
        json.field("remaining", ifPresent: rule.remaining)
        if let percent = rule.request.percent { json.field("percent", percent) }
        json.field("fired", rule.fired)
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
