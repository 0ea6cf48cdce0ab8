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
    static let bodyMax = 16 << 20

    /// The simulator closes the connection and answers nothing.
    private struct Closed: Error {}

    let store: Storefront

    func add(to router: Router<SimulatorContext>) {
        for environment in StoreEnvironment.allCases {
            let path = environment.rawValue.lowercased()
            router.post("/\(path)/verifyReceipt") { request, context in
                let buffer = try await request.body.collect(upTo: Self.bodyMax)
                return try await serve(.verifyReceipt, environment, context) { _ in
                    store.verifyReceipt(Array(buffer.readableBytesView), environment)
                }
            }
            for method in [HTTPRequest.Method.get, .put, .delete, .patch] {
                router.on("/\(path)/verifyReceipt", method: method) { _, context in
                    try await serve(.verifyReceipt, environment, context) { _ in .receiptStatus(21000) }
                }
            }
            for (service, method, pattern) in Self.serverAPI {
                router.on("/\(path)/inApps/\(pattern)", method: method) { request, context in
                    var call = AppleCall(
                        service: service, environment: environment, authorization: request.headers[.authorization])
                    call.method = method.rawValue
                    if service == .messaging { call.pattern = String(pattern.dropFirst("v1/messaging/".count)) }
                    call.id = context.parameters.get("id") ?? ""
                    call.productId = context.parameters.get("productId") ?? ""
                    if request.uri.query != nil {
                        for (name, value) in request.uri.queryParameters {
                            call.query.append((String(name), String(value)))
                        }
                    }
                    if method != .get {
                        call.body = Array(try await request.body.collect(upTo: Self.bodyMax).readableBytesView)
                    }
                    return try await serve(service, environment, context) { [call] fault in
                        guard method == .get || fault?.isRefusal != true else {
                            // The script refuses the call: Apple would have changed nothing.
                            return AppleAnswer(status: 0, body: [], transactionIds: call.ids)
                        }
                        return store.answer(call, foreign: fault?.kind == .foreignRoot)
                    }
                }
            }
        }
    }

    /// Methods and paths of the App Store Server API (AppleFacts 3.3).
    private static let serverAPI: [(SimulatedService, HTTPRequest.Method, String)] = [
        (.transactionInfo, .get, "v1/transactions/{id}"),
        (.history, .get, "v2/history/{id}"),
        (.historyV1, .get, "v1/history/{id}"),
        (.subscriptionStatuses, .get, "v1/subscriptions/{id}"),
        (.orderLookup, .get, "v1/lookup/{id}"),
        (.refundHistory, .get, "v2/refund/lookup/{id}"),
        (.refundHistoryV1, .get, "v1/refund/lookup/{id}"),
        (.extendSubscription, .put, "v1/subscriptions/extend/{id}"),
        (.massExtend, .post, "v1/subscriptions/extend/mass"),
        (.massExtendStatus, .get, "v1/subscriptions/extend/mass/{productId}/{id}"),
        (.consumption, .put, "v2/transactions/consumption/{id}"),
        (.consumptionV1, .put, "v1/transactions/consumption/{id}"),
        (.testNotification, .post, "v1/notifications/test"),
        (.testNotificationStatus, .get, "v1/notifications/test/{id}"),
        (.notificationHistory, .post, "v1/notifications/history"),
        (.appAccountToken, .put, "v1/transactions/{id}/appAccountToken"),
        (.appTransaction, .get, "v1/transactions/appTransactions/{id}"),
        (.finish, .post, "v1/transactions/{id}/finish"),
        (.messaging, .get, "v1/messaging/image/list"),
        (.messaging, .put, "v1/messaging/image/{id}"),
        (.messaging, .delete, "v1/messaging/image/{id}"),
        (.messaging, .get, "v1/messaging/message/list"),
        (.messaging, .put, "v1/messaging/message/{id}"),
        (.messaging, .delete, "v1/messaging/message/{id}"),
        (.messaging, .get, "v1/messaging/default/{productId}/{id}"),
        (.messaging, .put, "v1/messaging/default/{productId}/{id}"),
        (.messaging, .delete, "v1/messaging/default/{productId}/{id}"),
        (.messaging, .get, "v1/messaging/realtime/url"),
        (.messaging, .put, "v1/messaging/realtime/url"),
        (.messaging, .delete, "v1/messaging/realtime/url"),
        (.messaging, .post, "v1/messaging/performanceTest"),
        (.messaging, .get, "v1/messaging/performanceTest/result/{id}"),
    ]

    /// Answers one call as the fault script wants it, and logs the call. `answer` gets the fault that applies.
    private func serve(
        _ service: SimulatedService,
        _ environment: StoreEnvironment,
        _ context: SimulatorContext,
        _ answer: (FaultRequest?) -> AppleAnswer
    ) async throws -> Response {
        let arrived = store.clock.now
        let began = ContinuousClock.now
        store.calls.begin()
        let plan = store.faults.plan(service, environment)
        var result = answer(plan.fault)
        var answered = true
        if plan.delayMilliseconds > 0 { answered = await pause(plan.delayMilliseconds / 1000) }
        if let fault = plan.fault, answered {
            switch fault.kind {
            case .timeout:
                _ = await pause(fault.seconds ?? 120)
                answered = false
            case .reset: answered = false
            case .foreignRoot: break
            default: result = result.replaced(by: fault, of: service, now: store.clock.now)
            }
        }
        store.calls.end { number in
            SimulatorCall(
                number: number, service: service, environment: environment, at: arrived,
                milliseconds: Int64((ContinuousClock.now - began) / .milliseconds(1)),
                transactionIds: result.transactionIds,
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
