import Foundation
import Hummingbird
import NIOCore
import ServiceLifecycle

/// The OCSP responder, `/ocsp/{leaf or intermediate}`, and its script, `/control/ocsp`.
extension ControlRoutes {
    func addResponder(to router: Router<SimulatorContext>) {
        for subject in Responder.Subject.allCases {
            router.post("/ocsp/\(subject.rawValue)") { request, _ in try await answer(request, subject) }
        }
        router.get("/control/ocsp") { _, _ in json { write(store.responder.settings, &$0) } }
        router.put("/control/ocsp") { request, _ in
            try await answer(request) { (change: ResponderRequest) async throws(ControlError) in
                let settings = try store.responder.set(change)
                return json { write(settings, &$0) }
            }
        }
    }

    private func answer(_ request: Request, _ subject: Responder.Subject) async throws -> Response {
        let buffer = try await request.body.collect(upTo: Self.bodyMax)
        let settings = store.responder.plan(subject)
        let milliseconds = settings.manner == .silent ? 600_000 : settings.delayMilliseconds
        if milliseconds > 0 {
            try? await cancelWhenGracefulShutdown { try await Task.sleep(for: .milliseconds(milliseconds)) }
        }
        switch settings.manner {
        case .silent, .error: return Response(status: .internalServerError)
        case .garbage: return Response(status: .ok, body: .init(byteBuffer: ByteBuffer(string: "<html></html>")))
        case .redirect where request.uri.query == nil:
            return Response(status: .temporaryRedirect, headers: [.location: "\(request.uri.path)?moved"])
        case .signed, .delegated, .undelegated, .forged, .stale, .tryLater, .redirect:
            let answer = store.responder.answer(
                subject, Array(buffer.readableBytesView), settings,
                now: Date(timeIntervalSince1970: Double(store.clock.now) / 1000))
            return Response(
                status: .ok, headers: [.contentType: "application/ocsp-response"],
                body: .init(byteBuffer: ByteBuffer(bytes: answer)))
        }
    }

    private func write(_ settings: ResponderSettings, _ json: inout JSONWriter) {
        json.field("leaf", settings.leaf.rawValue)
        json.field("intermediate", settings.intermediate.rawValue)
        json.field("manner", settings.manner.rawValue)
        json.field("delayMilliseconds", settings.delayMilliseconds)
        json.field("validSeconds", settings.validSeconds)
        let asked = store.responder.asked
        json.field(
            "asked",
            object: { object in
                for subject in Responder.Subject.allCases { object.field(subject.rawValue, asked[subject] ?? 0) }
            })
    }
}
