import HTTPTypes
import Hummingbird
import NIOCore

/// Apple's reports: `/control/reports/sales`, `/control/reports/financial`.
extension ControlRoutes {
    func addReports(to router: Router<SimulatorContext>) {
        router.get("/control/reports/sales") { request, _ in
            try await answer { () throws(ControlError) in
                report(try store.salesReport(day: String(request.uri.queryParameters["day"] ?? "")))
            }
        }
        router.get("/control/reports/financial") { request, _ in
            try await answer { () throws(ControlError) in
                report(try store.financialReport(month: String(request.uri.queryParameters["month"] ?? "")))
            }
        }
    }

    private func report(_ text: String) -> Response {
        Response(
            status: .ok, headers: [.contentType: "text/tab-separated-values; charset=utf-8"],
            body: .init(byteBuffer: ByteBuffer(string: text)))
    }
}
