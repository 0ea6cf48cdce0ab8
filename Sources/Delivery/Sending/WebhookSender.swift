import AsyncHTTPClient
package import Foundation
import NIOCore
import NIOHTTP1
package import NIOSSL
package import Settings

/// Sends webhooks to one endpoint.
package final class WebhookSender: Sendable {
    private let endpoint: EndpointSettings
    private let clients: EndpointClients

    /// - Parameter trustRoots: the authorities that may sign the endpoint's certificate; those of the machine, but for
    ///   tests.
    package init(_ endpoint: EndpointSettings, trustRoots: NIOSSLTrustRoots = .default) {
        self.endpoint = endpoint
        clients = EndpointClients(endpoint, trustRoots: trustRoots)
    }

    /// Ends every connection. Sends that run end with the word `stopped` or `reset`.
    package func shutDown() async {
        await clients.shutDown()
    }

    /// Posts one event, signed with each secret of the endpoint. Ends within the endpoint's time limit, and at once if
    /// the task is cancelled (`stopped`).
    ///
    /// The endpoint may have taken the event whatever the answer is, unless the word of a failure says that nothing was
    /// sent.
    ///
    /// - Parameters:
    ///   - eventID: the same for each try.
    ///   - now: the time that is signed, and from which `Retry-After` counts.
    package func send(eventID: String, body: [UInt8], now: Date) async -> WebhookAnswer {
        let request = request(eventID, body, now)
        // The first of three counts: the answer, the end of the time, the end of this task. None can wait for the others:
        // a look-up of a name cannot be cancelled.
        let (answers, first) = AsyncStream.makeStream(of: WebhookAnswer.self, bufferingPolicy: .bufferingOldest(1))
        let deadline = NIODeadline.now() + TimeAmount(endpoint.timeout)
        let attempt = Task { _ = first.yield(await self.attempt(request, deadline, now)) }
        let alarm = HTTPClient.defaultEventLoopGroup.any().scheduleTask(deadline: deadline) { [endpoint] in
            _ = first.yield(.failed(reason: .late(endpoint.timeout)))
        }
        defer {
            alarm.cancel()
            attempt.cancel()
        }
        for await answer in answers { return answer }
        return .failed(reason: .stopped)
    }

    private func request(_ eventID: String, _ body: [UInt8], _ now: Date) -> HTTPClientRequest {
        let timestamp = Int(now.timeIntervalSince1970)
        let signature = WebhookSignature.sign(
            id: eventID, timestamp: timestamp, body: body, secrets: endpoint.secrets)
        var request = HTTPClientRequest(url: endpoint.url.text)
        request.method = .POST
        request.headers = [
            "content-type": "application/json", "user-agent": "makegood/\(Version.current)",
            WebhookSignature.Header.id: eventID, WebhookSignature.Header.timestamp: "\(timestamp)",
            WebhookSignature.Header.signature: signature,
        ]
        request.body = .bytes(ByteBuffer(bytes: body))
        return request
    }

    /// Sends to the first address of the host to which a connection can be made.
    private func attempt(
        _ request: HTTPClientRequest, _ deadline: NIODeadline, _ now: Date
    ) async -> WebhookAnswer {
        do throws(WebhookFailure) {
            var last = WebhookFailure.stopped
            for target in try await clients.targets() {
                do throws(WebhookFailure) {
                    return try await answer(to: request, by: target.http, deadline, now)
                } catch  where error.word == .connect {
                    clients.demote(target.address)
                    last = error
                }
            }
            throw last
        } catch {
            return .failed(reason: error)
        }
    }

    private func answer(
        to request: HTTPClientRequest, by http: HTTPClient, _ deadline: NIODeadline, _ now: Date
    ) async throws(WebhookFailure) -> WebhookAnswer {
        do {
            let response = try await http.execute(request, deadline: deadline)
            let status = Int(response.status.code)
            guard !(300..<400).contains(status) else {
                throw WebhookFailure(
                    .redirect, "\(endpoint.url.host) answered \(status), and no redirect is followed: mend the url")
            }
            var body: [UInt8] = []
            for try await bytes in response.body {
                body += bytes.readableBytesView.prefix(WebhookAnswer.bodyMax - body.count)
                // Leaving the loop closes the connection.
                if body.count == WebhookAnswer.bodyMax { break }
            }
            let retryAfter = response.headers.first(name: "retry-after")
                .flatMap { WebhookAnswer.retryAfter($0, now: now) }
            return .status(status, retryAfter: retryAfter, body: body)
        } catch {
            throw failure(error)
        }
    }

    private func failure(_ error: any Error) -> WebhookFailure {
        let host = endpoint.url.host
        let reset = WebhookFailure(.reset, "\(host) closed the connection before its answer was whole")
        switch error {
        case let error as WebhookFailure: return error
        case is CancellationError: return .stopped
        case let error as HTTPClientError:
            switch error {
            case .cancelled, .alreadyShutdown: return .stopped
            case .deadlineExceeded: return .late(endpoint.timeout)
            case .connectTimeout: return WebhookFailure(.connect, "no connection to \(host) could be made in time")
            case .tlsHandshakeTimeout: return WebhookFailure(.tls, "\(host) did not begin TLS in time")
            case .remoteConnectionClosed, .uncleanShutdown: return reset
            default:
                return WebhookFailure(.malformedAnswer, "\(host) gave no answer of HTTP: \(error.shortDescription)")
            }
        case let error as IOError where ![ECONNRESET, EPIPE].contains(error.errnoCode):
            return WebhookFailure(.connect, "no connection to \(host) could be made (errno \(error.errnoCode))")
        // Also the end of a connection in the middle of an answer, without the end that TLS has.
        case is IOError, is ChannelError, NIOSSLError.uncleanShutdown: return reset
        case is NIOSSLError, is NIOSSLExtraError, is BoringSSLError:
            return WebhookFailure(.tls, "TLS with \(host) failed: \(String(describing: error).prefix(200))")
        default: return WebhookFailure(.malformedAnswer, "\(host) gave no answer of HTTP: \(error)")
        }
    }
}

extension WebhookFailure {
    fileprivate static let stopped = WebhookFailure(.stopped, "this process stopped before an answer came")

    fileprivate static func late(_ limit: Duration) -> WebhookFailure {
        WebhookFailure(.timeout, "no whole answer came within \(limit.components.seconds) s")
    }
}
