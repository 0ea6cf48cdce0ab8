import AsyncHTTPClient
import Encoding
import Foundation
import NIOCore
import NIOHTTP1

/// A caller of one ingest process, over real HTTP.
struct Client: Sendable {
    struct Answer: Sendable {
        let status: Int
        fileprivate let headers: HTTPHeaders
        let body: Data

        /// The body as a JSON object; empty if it is none.
        var json: [String: Any] { (try? JSONSerialization.jsonObject(with: body)) as? [String: Any] ?? [:] }
        var text: String { String(decoding: body, as: UTF8.self) }
        var state: String { json["state"] as? String ?? "" }
        var reason: String? { json["reason"] as? String }
        var id: String { json["id"] as? String ?? "" }
        var code: String { json["code"] as? String ?? "" }
        var field: String? { json["field"] as? String }
        var safeToFinish: Bool? { json["safeToFinish"] as? Bool }
        var isAccepted: Bool { status == 200 || status == 202 }
        func header(_ name: String) -> String? { headers.first(name: name) }
        var transactions: [[String: Any]] { json["transactions"] as? [[String: Any]] ?? [] }
    }

    /// The body of a post; fields that are nil are left out.
    struct Post: Encodable, Sendable {
        var appId: String? = "game"
        var userId: String?
        var orderId: String?
        var signedTransaction: String?
        var receipt: String?
        var transactionId: String?
        var originalTransactionId: String?
        /// The session string of a stored record (S0-1).
        var token: String?
        var installationId: String?
        var installationToken: String?
        /// The item that was bought, where one store product is sold as several items.
        var item: String?
        /// The user whom a stored record names, and the place in the game (S0-1).
        var uid: String?
        var appsid: String?
        var ext: String?
    }

    /// Its own client with many connections, so that a hundred callers at once have a hundred connections.
    private static let http: HTTPClient = {
        var configuration = HTTPClient.Configuration()
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = 400
        return HTTPClient(eventLoopGroupProvider: .singleton, configuration: configuration)
    }()

    let url: String
    var credential: String? = ConfigurationFile.Caller.gateway.rawValue
    /// The trace header that every call sends.
    var traceparent: String?

    func with(_ caller: ConfigurationFile.Caller) -> Client { Client(url: url, credential: caller.rawValue) }

    func post(_ post: Post, wait seconds: Int? = nil) async throws -> Answer {
        LogSearch.note(user: post.userId)
        return try await postBody(JSONEncoder().encode(post), wait: seconds)
    }

    func postBody(
        _ body: Data, to path: String = "/v1/receipts", wait seconds: Int? = nil, headers: [String: String] = [:],
        timeout: TimeAmount = .seconds(60)
    ) async throws -> Answer {
        try await call(
            .POST, path + (seconds.map { "?wait=\($0)" } ?? ""), .bytes(ByteBuffer(bytes: body)), timeout: timeout,
            headers: headers)
    }

    /// Each post's own answer, in their order.
    func postBatch(_ posts: [Post]) async throws -> [Answer] {
        for post in posts { LogSearch.note(user: post.userId) }
        let body = ByteBuffer(bytes: try JSONEncoder().encode(["receipts": posts]))
        let answer = try await call(.POST, "/v1/receipts/batch", .bytes(body))
        return try (answer.json["receipts"] as? [[String: Any]] ?? []).map {
            Answer(
                status: $0["status"] as? Int ?? 0, headers: answer.headers,
                body: try JSONSerialization.data(withJSONObject: $0))
        }
    }

    func order(_ fields: [String: String]) async throws -> Answer {
        LogSearch.note(user: fields["userId"])
        return try await call(.POST, "/v1/orders", .bytes(ByteBuffer(bytes: try JSONEncoder().encode(fields))))
    }

    func placeOrder(_ body: Data) async throws -> Answer {
        try await call(.POST, "/v1/orders", .bytes(ByteBuffer(bytes: body)))
    }

    /// Makes the account `user` part of the account `other`.
    func merge(_ user: String, into other: String) async throws -> Answer {
        try await with(.accounts).call(
            .POST, "/v1/users/\(user)/merge", .bytes(ByteBuffer(bytes: try JSONEncoder().encode(["into": other]))))
    }

    /// Says as the app's backend whether a user agrees that Apple is told what was used.
    func consent(of user: String, _ isGiven: Bool) async throws -> Answer {
        LogSearch.note(user: user)
        return try await with(.backend).call(
            .PUT, "/v1/users/\(user)/consent?appId=game",
            .bytes(ByteBuffer(bytes: try JSONEncoder().encode(["consented": isGiven]))))
    }

    /// Reports as the app's backend how many units of a granted purchase were used.
    func consumption(of transaction: String, units: Int) async throws -> Answer {
        try await with(.backend).call(
            .POST, "/v1/grants/\(transaction)/consumption",
            .bytes(ByteBuffer(bytes: try JSONEncoder().encode(["units": units]))))
    }

    /// Stores as the app's backend up to where its group has handled the events of `game`.
    func store(_ cursor: String, in group: String, rewinds: Bool = false) async throws -> Answer {
        let body = Data(#"{"after": "\#(cursor)", "rewind": \#(rewinds)}"#.utf8)
        return try await with(.backend).call(
            .PUT, "/v1/feed-groups/\(group)?appId=game", .bytes(ByteBuffer(bytes: body)))
    }

    func forget(group: String) async throws -> Answer {
        try await with(.backend).call(.DELETE, "/v1/feed-groups/\(group)?appId=game")
    }

    /// Posts a notification as Apple does.
    func notification(_ signedPayload: String) async throws -> Answer {
        var client = self
        client.credential = nil
        return try await client.call(
            .POST, "/v1/apple/notifications",
            .bytes(ByteBuffer(bytes: try JSONEncoder().encode(["signedPayload": signedPayload]))))
    }

    /// Reports what an app saw of its order.
    func report(
        _ kind: String, of order: String, user: String?, message: String? = nil
    ) async throws -> Answer {
        var fields = ["kind": kind]
        fields["userId"] = user
        fields["message"] = message
        return try await call(
            .POST, "/v1/orders/\(order)/reports", .bytes(ByteBuffer(bytes: try JSONEncoder().encode(fields))))
    }

    /// The token of a new installation. With `shown`: the next token of the installation whose token that is.
    func installationToken(after shown: String? = nil) async throws -> String {
        let body = try JSONEncoder().encode(["appId": "game", "installationToken": shown ?? ""])
        let answer = try await call(.POST, "/v1/installations", .bytes(ByteBuffer(bytes: body)))
        guard answer.status == 201, let token = answer.json["installationToken"] as? String else {
            throw Refused(answer: answer)
        }
        return token
    }

    func revokeInstallation(_ token: String) async throws -> Answer {
        let body = try JSONEncoder().encode(["appId": "game", "installationToken": token])
        return try await call(.DELETE, "/v1/installations", .bytes(ByteBuffer(bytes: body)))
    }

    struct Refused: Error {
        let answer: Answer
    }

    func receipt(_ id: String, wait seconds: Int? = nil) async throws -> Answer {
        try await call(.GET, "/v1/receipts/\(id)" + (seconds.map { "?wait=\($0)" } ?? ""))
    }

    func get(_ path: String) async throws -> Answer { try await call(.GET, path) }

    /// A post whose body arrives in pieces over `time`. An answer that comes before the end is returned at once.
    func postSlowly(_ body: Data, over time: Duration) async throws -> Answer {
        let pieces = 10
        let size = body.count / pieces + 1
        let (stream, continuation) = AsyncStream.makeStream(of: ByteBuffer.self)
        let sending = Task {
            for start in stride(from: 0, to: body.count, by: size) {
                continuation.yield(ByteBuffer(bytes: body[start..<min(start + size, body.count)]))
                try await Task.sleep(for: time / pieces)
            }
            continuation.finish()
        }
        defer { sending.cancel() }
        return try await call(.POST, "/v1/receipts", .stream(stream, length: .known(Int64(body.count))))
    }

    /// A post whose body of so many bytes arrives as the stream brings it.
    func postStream(
        _ body: AsyncStream<ByteBuffer>, bytes: Int, to path: String = "/v1/receipts"
    ) async throws -> Answer {
        try await call(.POST, path, .stream(body, length: .known(Int64(bytes))), timeout: .seconds(180))
    }

    private func call(
        _ method: HTTPMethod, _ path: String, _ body: HTTPClientRequest.Body? = nil, timeout: TimeAmount = .seconds(60),
        headers: [String: String] = [:]
    ) async throws -> Answer {
        var request = HTTPClientRequest(url: url + path)
        request.method = method
        LogSearch.note(credential: credential)
        if let credential { request.headers.add(name: "Authorization", value: "Bearer \(credential)") }
        if let traceparent { request.headers.add(name: "traceparent", value: traceparent) }
        if let body {
            request.headers.add(name: "Content-Type", value: "application/json")
            request.body = body
        }
        for (name, value) in headers { request.headers.replaceOrAdd(name: name, value: value) }
        let response = try await Self.http.execute(request, timeout: timeout)
        let bytes = try await response.body.collect(upTo: 64 << 20)
        if response.status.code >= 400 {
            LogSearch.examine(
                "\(response.headers)\n\(String(buffer: bytes))", of: "the answer \(response.status.code) to \(method)")
        }
        return Answer(
            status: Int(response.status.code), headers: response.headers, body: Data(bytes.readableBytesView))
    }

    /// Every event of the feed, page by page, as the app backend reads it.
    func events() async throws -> [[String: Any]] {
        try await feed().flatMap { $0.json["events"] as? [[String: Any]] ?? [] }
    }

    /// The same events, each number as it was written.
    func eventValues() async throws -> [JSONValue] {
        try await feed().flatMap { page -> [JSONValue] in
            guard case .array(let events)? = try JSONValue(parsing: Array(page.body))["events"] else { return [] }
            return events
        }
    }

    /// The pages of the feed that hold events.
    private func feed() async throws -> [Answer] {
        var cursor = "0-0"
        var pages: [Answer] = []
        while true {
            let answer = try await with(.backend).get("/v1/events?after=\(cursor)&limit=1000")
            guard answer.status == 200, let page = answer.json["events"] as? [[String: Any]],
                let next = answer.json["next"] as? String
            else { throw System.Failure(description: "the feed answers \(answer.status): \(answer.text)") }
            if page.isEmpty { return pages }
            pages.append(answer)
            cursor = next
        }
    }
}
