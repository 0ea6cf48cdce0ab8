import Adversary
import ArgumentParser
import AsyncHTTPClient
import Commands
import Delivery
import Encoding
import Foundation
import NIOCore
import NIOHTTP1
import Postgres
import Settings

/// `makegood-lab bench deliver`: receives what dispatchers send, and says how many webhooks came a second, beside the feed
/// and beside a bare loop of posts.
struct BenchDeliverCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "deliver",
        abstract: "Receive webhooks until none comes any more, then read the feed, then post to a receiver directly.",
        discussion: """
            Listens on the loopback at --port, where a dispatcher sends, until no webhook has come for \
            \(Int(Self.silence / .seconds(1))) seconds. Then reads all events of the app from the ingest, page by page. \
            Then posts one of these events, signed, to a receiver in this process for --seconds. Prints one line of \
            JSON: {"deliveredPerSecond", "deliveredMilliseconds", "feedPerSecond", "postsPerSecond", "events", \
            "repeats"}. Of the webhooks the middle 80 % count; the milliseconds are p99 from the transaction that wrote \
            the event to the arrival. Needs the database of that dispatcher.
            """)

    @Option(help: ArgumentHelp("Where to listen; a configured endpoint names it.", valueName: "port"))
    var port: Int

    @Option(help: ArgumentHelp("The file with the endpoint's secret.", valueName: "file"))
    var secretFile: String

    @Option(help: ArgumentHelp("The ingest.", valueName: "url"))
    var url = "http://127.0.0.1:8080"

    @Option(help: "The key of a caller with the scope events.")
    var key: String

    @Option(help: ArgumentHelp("The app whose events are delivered.", valueName: "id"))
    var app = "game"

    @Option(help: ArgumentHelp("Connections of the bare loop, each with one post at a time.", valueName: "number"))
    var connections = 64

    @Option(help: "How long the bare loop posts.")
    var seconds = 10.0

    /// How long nothing comes before everything has come.
    private static let silence: Duration = .seconds(10)
    /// How long the first webhook may need.
    private static let patience: Duration = .seconds(600)
    private static let pageEvents = 1000
    private static let pageBytesMax = 64 << 20

    func validate() throws {
        guard (1...65_535).contains(port) else { throw ValidationError("--port must be 1 to 65535") }
        guard (1...1024).contains(connections) else { throw ValidationError("--connections must be 1 to 1024") }
        // A signature is worth something for five minutes.
        guard (1...200).contains(seconds) else { throw ValidationError("--seconds must be 1 to 200") }
    }

    func run() async throws {
        let text = try String(contentsOfFile: secretFile, encoding: .utf8)
        guard let secret = WebhookSecret(text.trimmingCharacters(in: .whitespacesAndNewlines)) else {
            throw ValidationError("--secret-file must hold one secret of the form whsec_ and base64")
        }
        let received = try await receive(secret)
        let middle = received.dropFirst(received.count / 10).dropLast(received.count / 10)
        guard let first = middle.first, let last = middle.last, last.at > first.at else {
            throw ValidationError("too few webhooks came to say how many come a second")
        }
        let delivered = Double(middle.count - 1) / ((last.at - first.at) / .seconds(1))
        let p99 = try await p99(of: Array(middle))
        var configuration = HTTPClient.Configuration()
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = connections
        configuration.httpVersion = .http1Only
        let http = HTTPClient(configuration: configuration)
        do {
            let feed = try await readFeed(http)
            let posts = try await post(feed.event, secret, http)
            try await http.shutdown()
            Terminal.show(
                "{\"deliveredPerSecond\":\(delivered.rounded(to: 0)),\"deliveredMilliseconds\":\(p99.rounded(to: 1)),"
                    + "\"feedPerSecond\":\(feed.perSecond.rounded(to: 0)),\"postsPerSecond\":\(posts.rounded(to: 0)),"
                    + "\"events\":\(feed.count),\"repeats\":\(received.count - Set(received.map(\.id)).count)}")
        } catch {
            try? await http.shutdown()
            throw error
        }
    }

    /// Takes webhooks until none comes any more.
    private func receive(_ secret: WebhookSecret) async throws -> [EventReceiver.Received] {
        let receiver = try await EventReceiver.start(secrets: [secret], port: port)
        let start = ContinuousClock.now
        var (count, since) = (0, start)
        repeat {
            try await Task.sleep(for: .milliseconds(500))
            let now = receiver.count
            if now != count { (count, since) = (now, .now) }
        } while ContinuousClock.now - since < (count == 0 ? Self.patience : Self.silence)
        await receiver.stop()
        let received = receiver.received
        if let refusal = received.lazy.compactMap(\.refusal).first {
            throw ValidationError("the receiver refused a webhook: \(refusal)")
        }
        return received
    }

    /// Milliseconds from the transactions that wrote the events to the arrivals, p99.
    private func p99(of received: [EventReceiver.Received]) async throws -> Double {
        let (clock, date) = (ContinuousClock.now, Date().timeIntervalSince1970)
        let told = try await Connections.withDatabase("bench-deliver", patience: .seconds(600), isReadOnly: true) {
            try await $0.run(Self.times, app)
        }
        let times = Dictionary(told.map { ($0.id, $0.at) }, uniquingKeysWith: { first, _ in first })
        let waits = received.compactMap { webhook in
            UUID(uuidString: webhook.id).flatMap { times[$0] }.map {
                date + (webhook.at - clock) / .seconds(1) - $0.timeIntervalSince1970
            }
        }.sorted()
        guard !waits.isEmpty else { throw ValidationError("the database does not have the events that came") }
        return waits[waits.count * 99 / 100] * 1000
    }

    private static let times = Statement<String, (id: UUID, at: Date)>(
        "bench.event_times", "select event_id, at from events where app_id = $1",
        bind: { [.text($0)] }, read: { row throws(PostgresError) in (id: try row.uuid(0), at: try row.date(1)) })

    /// Reads every event of the app, one page after the other.
    ///
    /// - Returns: how many there are, how many came a second, and the last of them as JSON.
    private func readFeed(_ http: HTTPClient) async throws -> (count: Int, perSecond: Double, event: [String: Any]) {
        let start = ContinuousClock.now
        var (count, after, event) = (0, "", [:] as [String: Any])
        while true {
            var request = HTTPClientRequest(
                url: "\(url)/v1/events?appId=\(app)&limit=\(Self.pageEvents)\(after.isEmpty ? "" : "&after=\(after)")")
            request.headers.add(name: "Authorization", value: "Bearer \(key)")
            let answer = try await http.execute(request, timeout: .seconds(30))
            let body = try await answer.body.collect(upTo: Self.pageBytesMax)
            guard answer.status == .ok,
                let page = try JSONSerialization.jsonObject(with: Data(body.readableBytesView)) as? [String: Any],
                let events = page["events"] as? [[String: Any]], let next = page["next"] as? String
            else { throw ValidationError("the feed was answered \(answer.status.code)") }
            guard let last = events.last else { break }
            (count, after, event) = (count + events.count, next, last)
        }
        guard count > 0 else { throw ValidationError("the feed has no events of \(app)") }
        return (count, Double(count) / ((ContinuousClock.now - start) / .seconds(1)), event)
    }

    /// Posts a second of a loop that does nothing else, to a receiver that does what it does for a dispatcher.
    private func post(_ event: [String: Any], _ secret: WebhookSecret, _ http: HTTPClient) async throws -> Double {
        let receiver = try await EventReceiver.start(secrets: [secret])
        let webhook = event.merging(["delivery": ["endpoint": "bench", "sequence": 1, "cursor": "0-0", "attempt": 1]]) {
            $1
        }
        let body = Array(try JSONSerialization.data(withJSONObject: webhook))
        let (id, timestamp) = (event["id"] as? String ?? "", Int(Date().timeIntervalSince1970))
        var request = HTTPClientRequest(url: receiver.url)
        request.method = .POST
        request.headers.add(name: "Content-Type", value: "application/json")
        request.headers.add(name: WebhookSignature.Header.id, value: id)
        request.headers.add(name: WebhookSignature.Header.timestamp, value: "\(timestamp)")
        request.headers.add(
            name: WebhookSignature.Header.signature,
            value: WebhookSignature.sign(id: id, timestamp: timestamp, body: body, secrets: [secret]))
        request.body = .bytes(ByteBuffer(bytes: body))
        let (start, length) = (ContinuousClock.now, Duration.seconds(seconds))
        let posts = try await withThrowingTaskGroup(of: Int.self) { [request] group in
            for _ in 0..<connections {
                group.addTask {
                    var count = 0
                    while ContinuousClock.now < start + length {
                        let answer = try await http.execute(request, timeout: .seconds(30))
                        _ = try await answer.body.collect(upTo: 1 << 16)
                        guard answer.status == .noContent else {
                            throw ValidationError("a post was answered \(answer.status.code)")
                        }
                        count += 1
                    }
                    return count
                }
            }
            return try await group.reduce(0, +)
        }
        let time = (ContinuousClock.now - start) / .seconds(1)
        await receiver.stop()
        return Double(posts) / time
    }
}
