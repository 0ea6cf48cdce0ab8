import Foundation
import HTTPTypes
import Hummingbird
import NIOCore

/// The control API under `/control`: tests and people use it to sell, refund, break and count.
///
/// Every body is JSON. A wrong body is answered with 400 and `{"error", "field"}`, an unknown purchase with 404.
struct ControlRoutes: Sendable {
    /// The largest request that is read, in bytes.
    static let bodyMax = 1 << 20
    /// How many purchases of the ledger are written at a time.
    static let ledgerChunk = 1000

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
        addQuestions(to: router)
        addProofs(to: router)
        addCustomers(to: router)
        addNotifications(to: router)
        addSettings(to: router)
        addClock(to: router)
        addFaults(to: router)
        addResponder(to: router)
        addReading(to: router)
        addReports(to: router)
    }

    // MARK: Plumbing

    func answer<Body: ControlBody & Sendable>(
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

    func answer(_ body: () throws(ControlError) -> Response) async throws -> Response {
        do throws(ControlError) {
            return try body()
        } catch {
            return refusal(error)
        }
    }

    func refusal(_ error: ControlError) -> Response {
        json(.init(code: error.status)) { body in
            body.field("error", error.message)
            body.field("field", ifPresent: error.field)
        }
    }

    func number(_ name: String, of request: Request) throws(ControlError) -> Int? {
        guard let text = request.uri.queryParameters[Substring(name)] else { return nil }
        guard let value = Int(text), value >= 0 else {
            throw ControlError(field: name, "must be a number from 0")
        }
        return value
    }

    func json(
        _ status: HTTPResponse.Status = .ok,
        capacity: Int = 512,
        _ fill: (inout JSONWriter) -> Void
    ) -> Response {
        Response(
            status: status, headers: [.contentType: "application/json"],
            body: .init(byteBuffer: ByteBuffer(bytes: JSONWriter.object(capacity: capacity, fill))))
    }
}
