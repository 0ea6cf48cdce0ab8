// Receives Makegood's webhooks, and hands goods out in one transaction with the note that it did. Swift 6, with
// swift-crypto and Hummingbird, and SQLite as its store.
//
//     RECEIVER_SECRETS=secrets.txt RECEIVER_DATABASE=game.sqlite RECEIVER_PORT=8088 swift run
//
// RECEIVER_SECRETS is a file with a secret (whsec_…) a line: one, or two while a secret is changed. Each request reads
// the file anew. Put your own tables beside `webhook_events` and `webhook_cursors`, and your own work in the place of
// `handOut`. The receiver listens on 127.0.0.1, or on RECEIVER_HOST: TLS ends at your gateway.
import Crypto
import Foundation
import HTTPTypes
import Hummingbird
import Logging
import NIOCore

/// An event of Makegood's, as far as this backend uses it.
struct Event: Decodable {
    struct Goods: Decodable {
        let item: String
        let amount: Int
    }
    struct Facts: Decodable {
        let takeBack: Bool?
        let goods: [Goods]?
    }
    struct Delivery: Decodable {
        let endpoint: String
        let cursor: String
        let previousId: String?
    }

    let id: String
    let type: String
    let userId: String?
    let at: String
    let data: Facts
    let delivery: Delivery

    /// The two numbers of the cursor; nil for anything else.
    var cursor: (place: Int, number: Int)? {
        let parts = delivery.cursor.split(separator: "-", omittingEmptySubsequences: false).map { Int($0) }
        guard parts.count == 2, let place = parts[0], let number = parts[1], place >= 0, number >= 0 else { return nil }
        return (place, number)
    }
}

/// The request is answered with this status, and nothing of it is kept.
struct Refused: Error {
    let status: Int
    let why: String
}

struct Misconfigured: Error, CustomStringConvertible {
    let description: String
}

/// What a request must prove before anything of it is read.
enum Webhook {
    static let toleranceSeconds = 300
    static let bodyBytesMax = 1 << 20

    /// The secrets of the file, decoded.
    static func readSecrets(_ path: String) throws -> [SymmetricKey] {
        let lines = try String(contentsOfFile: path, encoding: .utf8).split(whereSeparator: \.isWhitespace)
        let secrets = try lines.map { line in
            guard line.hasPrefix("whsec_"), let secret = Data(base64Encoded: String(line.dropFirst(6))),
                (24...64).contains(secret.count)
            else {
                throw Misconfigured(description: "\(path): each line must be whsec_ and the base64 of 24 to 64 bytes")
            }
            return SymmetricKey(data: secret)
        }
        guard !secrets.isEmpty else { throw Misconfigured(description: "\(path): there is no secret") }
        return secrets
    }

    /// Standard Webhooks: one of the signatures is by one of the secrets, over exactly these bytes, and was made just
    /// now. Returns the event's id.
    static func verify(_ headers: HTTPFields, _ body: Data, secrets: [SymmetricKey], now: Int) throws(Refused) -> String
    {
        func header(_ name: String) -> String { HTTPField.Name(name).flatMap { headers[$0] } ?? "" }
        let (id, stamp) = (header("webhook-id"), header("webhook-timestamp"))
        guard !id.isEmpty, (1...12).contains(stamp.utf8.count), stamp.utf8.allSatisfy({ (48...57).contains($0) }),
            let made = Int(stamp)
        else { throw Refused(status: 401, why: "webhook-id or webhook-timestamp is missing") }
        guard abs(now - made) <= toleranceSeconds else {
            throw Refused(status: 401, why: "webhook-timestamp is more than five minutes from this clock")
        }
        let signed = Data("\(id).\(stamp).".utf8) + body
        let given = header("webhook-signature").split(separator: " ").filter { $0.hasPrefix("v1,") }
            .compactMap { Data(base64Encoded: String($0.dropFirst(3))) }
        var isOurs = false
        for secret in secrets {
            for one in given {
                // Each pair is compared, in constant time.
                if HMAC<SHA256>.isValidAuthenticationCode(one, authenticating: signed, using: secret) { isOurs = true }
            }
        }
        guard isOurs else { throw Refused(status: 401, why: "no signature is by a secret of ours") }
        return id
    }
}

@main
struct Receiver {
    static func main() async throws {
        let environment = ProcessInfo.processInfo.environment
        guard let secretsFile = environment["RECEIVER_SECRETS"], let database = environment["RECEIVER_DATABASE"] else {
            throw Misconfigured(description: "RECEIVER_SECRETS and RECEIVER_DATABASE must be set")
        }
        _ = try Webhook.readSecrets(secretsFile)
        let store = try Store(path: database)
        let log = Logger(label: "receiver")

        let router = Router()
        router.post("**") { request, _ in
            let status: Int
            do {
                try await receive(request, secretsFile: secretsFile, store: store, log: log)
                status = 204
            } catch let refused as Refused {
                log.warning("refused with \(refused.status): \(refused.why)")
                status = refused.status
            } catch {  // the database, the secrets: Makegood comes again
                log.error("failed: \(error)")
                status = 500
            }
            return Response(status: .init(code: status))
        }
        let host = environment["RECEIVER_HOST"] ?? "127.0.0.1"
        let port = environment["RECEIVER_PORT"].flatMap { Int($0) } ?? 8088
        let application = Application(
            router: router, configuration: .init(address: .hostname(host, port: port)), logger: log)
        try await application.runService()
    }

    static func receive(_ request: Request, secretsFile: String, store: Store, log: Logger) async throws {
        let body: Data
        do {
            body = Data(buffer: try await request.body.collect(upTo: Webhook.bodyBytesMax))
        } catch {
            throw Refused(status: 413, why: "the body is too large, or did not arrive")
        }
        let now = Int(Date().timeIntervalSince1970)
        let id = try Webhook.verify(
            request.headers, body, secrets: try Webhook.readSecrets(secretsFile), now: now)
        guard let event = try? JSONDecoder().decode(Event.self, from: body), event.id == id,
            let cursor = event.cursor
        else { throw Refused(status: 400, why: "the body is no event, or another one than webhook-id names") }
        let taken = try await store.take(event, cursor: cursor)
        if let missing = taken.missing {
            log.warning(
                "event \(id): the user's event before it, \(missing), is unknown here; if it does not come, read the feed"
            )
        }
        log.info("\(event.type) \(id)\(taken.isNew ? "" : ", which was taken before")")
    }
}
