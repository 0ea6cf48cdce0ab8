import ArgumentParser
import Commands
import Delivery
import Encoding
import Foundation
import HTTPTypes
import Hummingbird
import Logging
import NIOCore
import ServiceLifecycle
import Settings
import Synchronization
import UnixSignals

extension EventsCommand {
    /// `makegood events listen`: a receiver for development, until SIGTERM or SIGINT.
    struct Listen: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Receive webhooks on this machine and print them, for development.",
            discussion: """
                Verifies each webhook, prints one line for it, and answers 204. A webhook whose signature or time is wrong \
                is answered 401. Nothing is stored: the command remembers the ids of the newest \
                \(ReceivedWebhooks.eventsMax) events, to say which ones come again. An endpoint of the app has to lead \
                here, with allowPrivate: [127.0.0.1] beside its url. Ends on SIGTERM or SIGINT, and says what it took.
                """)

        @Option(help: "The address to listen on.")
        var host = "127.0.0.1"
        @Option(help: "The port to listen on; 0 takes a free one.")
        var port = 8099
        @Option(help: ArgumentHelp("The endpoint's file of one secret, or two while they change.", valueName: "file"))
        var secretFile: String
        @Option(
            help: ArgumentHelp(
                "Answer 500 to this share of the webhooks, to see them come again.", valueName: "percent"))
        var fail: Share = Share(percent: 0)
        @Flag(help: "Print the body of each webhook that is taken, as JSON, in the place of the line.")
        var json = false

        func validate() throws {
            guard (0...65_535).contains(port) else { throw ValidationError("--port must be 0 to 65535") }
        }

        func run() async throws {
            let text = String(decoding: try InputFile(path: secretFile).read(bytesMax: 4096), as: UTF8.self)
            let secrets: [WebhookSecret]
            do throws(WebhookSecret.Invalid) {
                secrets = try WebhookSecret.list(text)
            } catch {
                throw UnusableInput("--secret-file \(secretFile) \(error.problem)")
            }
            let listener = WebhookListener(secrets: secrets, fail: fail, printsJSON: json)
            var logger = Logger(label: "makegood.listen") { StreamLogHandler.standardError(label: $0) }
            logger.logLevel = .critical
            let application = Application(
                responder: CallbackResponder<BasicRequestContext> { request, _ in try await listener.answer(request) },
                configuration: .init(address: .hostname(host, port: port)),
                onServerRunning: { [host, port] channel in
                    Terminal.tell("listening on http://\(host):\(channel.localAddress?.port ?? port)/")
                },
                logger: logger)
            let services = ServiceGroup(
                configuration: .init(
                    services: [.init(service: application)], gracefulShutdownSignals: [.sigterm, .sigint],
                    logger: logger))
            do {
                try await services.run()
            } catch let error as IOError {
                let reason = String(cString: strerror(error.errnoCode))
                Terminal.tell("makegood events listen: cannot listen on \(host):\(port): \(reason)")
                throw ExitCode.failure
            }
            Terminal.tell(listener.summary)
        }
    }

    /// A share in percent, such as `20%`.
    struct Share: ExpressibleByArgument, CustomStringConvertible {
        let percent: Int

        init(percent: Int) { self.percent = percent }

        init?(argument: String) {
            guard let percent = Int(argument.hasSuffix("%") ? String(argument.dropLast()) : argument),
                (0...100).contains(percent)
            else { return nil }
            self.percent = percent
        }

        var description: String { "\(percent)%" }
    }
}

/// Answers webhooks, and prints them.
private final class WebhookListener: Sendable {
    private static let bytesMax = 8 << 20

    private struct State {
        var received = ReceivedWebhooks()
        var refused = 0
        var failed = 0
    }

    private let secrets: [WebhookSecret]
    private let fail: EventsCommand.Share
    private let printsJSON: Bool
    private let state = Mutex(State())

    init(secrets: [WebhookSecret], fail: EventsCommand.Share, printsJSON: Bool) {
        self.secrets = secrets
        self.fail = fail
        self.printsJSON = printsJSON
    }

    var summary: String {
        state.withLock { state in
            "took \(state.received.taken.counted("event")), \(state.received.repeated) again; "
                + "refused \(state.refused), failed \(state.failed) on purpose"
        }
    }

    func answer(_ request: Request) async throws -> Response {
        guard request.method == .post else { return Response(status: .methodNotAllowed) }
        let body: [UInt8]
        do {
            body = Array(try await request.body.collect(upTo: Self.bytesMax).readableBytesView)
        } catch is NIOTooManyBytesError {
            return refuse(.contentTooLarge, "the body has more than \(Self.bytesMax) bytes")
        }
        do throws(WebhookSignature.Refusal) {
            try WebhookSignature.verify(body: body, secrets: secrets, now: Date()) { name in
                HTTPField.Name(name).flatMap { request.headers[$0] }
            }
        } catch {
            return refuse(.unauthorized, error.sentence)
        }
        guard let event = try? JSONValue(parsing: body), case .object = event else {
            return refuse(.badRequest, "the body is no JSON object")
        }
        if Int.random(in: 0..<100) < fail.percent {
            state.withLock { $0.failed += 1 }
            show("500  \(ReceivedWebhooks.line(event, ["fails on purpose and comes again"]))")
            return Response(status: .internalServerError)
        }
        let line = state.withLock { $0.received.take(event) }
        if printsJSON { Terminal.show(body) } else { show("204  \(line)") }
        return Response(status: .noContent)
    }

    private func refuse(_ status: HTTPResponse.Status, _ why: String) -> Response {
        state.withLock { $0.refused += 1 }
        show("\(status.code)  refused: \(why)")
        return Response(status: status)
    }

    private func show(_ line: String) {
        let text = "\(Date().rfc3339)  \(line)"
        // With --json standard output holds bodies alone.
        if printsJSON { Terminal.tell(text) } else { Terminal.show(text) }
    }
}

extension WebhookSignature.Refusal {
    fileprivate var sentence: String {
        switch self {
        case .header(let name): "the header \(name) is missing, or says nothing"
        case .timestamp: "its time is more than five minutes from this clock"
        case .signature: "no signature is by a secret of the file"
        }
    }
}
