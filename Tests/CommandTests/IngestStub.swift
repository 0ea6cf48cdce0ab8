import Foundation
import HTTPTypes
import Hummingbird
import Logging
import NIOCore
import Purchases
import Synchronization
import TestServers

/// A stand-in for ingest on a port of its own: it takes receipts and answers as the test says.
final class IngestStub: Sendable {
    struct Submission: Decodable, Sendable {
        let appId: String?
        let userId: String
        let signedTransaction: String
    }

    struct Reply: Sendable {
        var status = 202
        var state = "received"
        var delay = Duration.zero
    }

    private struct State {
        var submissions: [Submission] = []
        var authorizations: Set<String> = []
        var questions: [String: Int] = [:]
        var other: [String] = []
    }

    private let reply: @Sendable (Int) -> Reply
    /// The number of the question at which a receipt is granted.
    private let grantedAt: Int
    private let state = Mutex(State())

    /// - Parameter reply: the answer to the submission with this number, from 0.
    init(grantedAt: Int = 1, reply: @escaping @Sendable (Int) -> Reply = { _ in Reply() }) {
        self.reply = reply
        self.grantedAt = grantedAt
    }

    var submissions: [Submission] { state.withLock { $0.submissions } }
    var authorizations: Set<String> { state.withLock { $0.authorizations } }
    /// Requested paths that the stub does not know.
    var other: [String] { state.withLock { $0.other } }

    /// Serves while `body` runs.
    func serve(_ body: (String) async throws -> Void) async throws {
        let (ports, port) = AsyncStream.makeStream(of: Int.self)
        let application = Application(
            router: router, configuration: .init(address: .hostname("127.0.0.1", port: 0)),
            onServerRunning: { channel in port.yield(channel.localAddress?.port ?? 0) },
            logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        try await RunningService.with(application) {
            for await port in ports {
                try await body("http://127.0.0.1:\(port)")
                break
            }
        }
    }

    private var router: Router<BasicRequestContext> {
        let router = Router()
        router.get("/health/live") { _, _ in HTTPResponse.Status.ok }
        router.post("/v1/receipts") { [self] request, _ in
            let body = try await request.body.collect(upTo: 1 << 20)
            let submission = try JSONDecoder().decode(Submission.self, from: Data(body.readableBytesView))
            let number = state.withLock { state in
                state.authorizations.insert(request.headers[.authorization] ?? "")
                state.submissions.append(submission)
                return state.submissions.count - 1
            }
            let reply = reply(number)
            if reply.delay > .zero { try await Task.sleep(for: reply.delay) }
            var headers: HTTPFields = [.contentType: "application/json"]
            if reply.status == 307 { headers[.location] = "/elsewhere" }
            return Response(
                status: .init(code: reply.status), headers: headers,
                body: .init(byteBuffer: ByteBuffer(string: #"{"id":"receipt-\#(number)","state":"\#(reply.state)"}"#)))
        }
        router.get("/v1/receipts/{id}") { [self] _, context in
            let id = context.parameters.get("id") ?? ""
            let question = state.withLock { state in
                state.questions[id, default: 0] += 1
                return state.questions[id] ?? 0
            }
            let shown = question >= grantedAt ? "granted" : "received"
            return Response(
                status: .ok, headers: [.contentType: "application/json"],
                body: .init(byteBuffer: ByteBuffer(string: #"{"id":"\#(id)","state":"\#(shown)"}"#)))
        }
        router.get("/elsewhere") { [self] _, _ in
            state.withLock { $0.other.append("/elsewhere") }
            return HTTPResponse.Status.ok
        }
        return router
    }
}
