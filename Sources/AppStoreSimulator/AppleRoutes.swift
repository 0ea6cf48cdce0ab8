import Foundation
import HTTPTypes
import Hummingbird
import NIOCore
import ServiceLifecycle

/// A request together with its connection, which a fault may have to break.
struct SimulatorContext: RequestContext {
    var coreContext: CoreRequestContextStorage
    let channel: any Channel

    init(source: ApplicationRequestContextSource) {
        coreContext = .init(source: source)
        channel = source.channel
    }
}

/// Apple's endpoints, production and sandbox each below their own path, with the fault script applied.
struct AppleRoutes: Sendable {
    /// The largest request that is read, in bytes; a longer one is answered 413.
    static let bodyMax = 8 << 20

    /// The connection is to be closed; nothing is answered.
    private struct Closed: Error {}

    let store: Storefront

    func add(to router: Router<SimulatorContext>) {
        for environment in StoreEnvironment.allCases {
            let path = environment.rawValue.lowercased()
            router.post("/\(path)/verifyReceipt") { request, context in
                let buffer = try await request.body.collect(upTo: Self.bodyMax)
                return try await serve(.verifyReceipt, environment, context) {
                    store.verifyReceipt(Array(buffer.readableBytesView), environment)
                }
            }
            for method in [HTTPRequest.Method.get, .put, .delete, .patch] {
                router.on("/\(path)/verifyReceipt", method: method) { _, context in
                    try await serve(.verifyReceipt, environment, context) { .receiptStatus(21000) }
                }
            }
            router.get("/\(path)/inApps/v1/transactions/{id}") { request, context in
                let id = context.parameters.get("id") ?? ""
                let authorization = request.headers[.authorization]
                return try await serve(.transactionInfo, environment, context) {
                    store.transactionInfo(id, authorization: authorization, environment)
                }
            }
        }
    }

    /// Answers one call as the fault script wants it, and writes it into the log.
    private func serve(
        _ service: SimulatedService,
        _ environment: StoreEnvironment,
        _ context: SimulatorContext,
        _ answer: () -> AppleAnswer
    ) async throws -> Response {
        let arrived = AppleDate.now
        store.calls.begin()
        let plan = store.faults.plan(service, environment)
        var result = answer()
        var answered = true
        if plan.delayMilliseconds > 0 { answered = await pause(plan.delayMilliseconds / 1000) }
        if let fault = plan.fault, answered {
            switch fault.kind {
            case .timeout:
                _ = await pause(fault.seconds ?? 120)
                answered = false
            case .reset: answered = false
            case .foreignRoot: result = store.signedElsewhere(result)
            default: result = result.replaced(by: fault, now: AppleDate.now)
            }
        }
        store.calls.end { number in
            SimulatorCall(
                number: number, service: service, environment: environment, at: arrived,
                milliseconds: AppleDate.now - arrived, transactionIds: result.transactionIds,
                receiptHash: result.receiptHash, status: answered ? result.status : nil,
                code: answered ? result.code : nil, faults: plan.kinds)
        }
        guard answered else { throw await closed(context.channel, reset: plan.fault?.kind == .reset) }
        return response(result)
    }

    /// Waits; false if the simulator is shutting down.
    private func pause(_ seconds: Double) async -> Bool {
        do {
            try await cancelWhenGracefulShutdown { try await Task.sleep(for: .seconds(seconds)) }
            return true
        } catch {
            return false
        }
    }

    /// Closes the connection; with `reset` by RST instead of FIN: a linger time of 0 throws the buffers away (tcp(7)).
    private func closed(_ channel: any Channel, reset: Bool) async -> any Error {
        if reset, let socket = channel as? any SocketOptionProvider {
            try? await socket.setSoLinger(linger(l_onoff: 1, l_linger: 0)).get()
        }
        try? await channel.close(mode: .all).get()
        return Closed()
    }

    private func response(_ answer: AppleAnswer) -> Response {
        var headers: HTTPFields = [.contentType: answer.contentType]
        if let retryAfter = answer.retryAfter { headers[.retryAfter] = retryAfter }
        return Response(
            status: .init(code: answer.status), headers: headers,
            body: .init(byteBuffer: ByteBuffer(bytes: answer.body)))
    }
}
