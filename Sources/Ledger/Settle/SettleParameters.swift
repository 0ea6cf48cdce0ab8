import Encoding
import Foundation
import Postgres
import Purchases

/// The parameters of ``Statements/settle``, each by the place that the text names it by.
struct SettleParameters {
    private(set) var list = ParameterList<SettleBatch>()
    let rows: BatchRows
    let places: BatchRows
    let appleUpdates: BatchRows
    /// ``Parking``, in seconds and attempts.
    let parkAfter: String
    let askAgainMin: String
    let askAgainMax: String
    let attemptsMin: String
    let safeAfter: String

    init() {
        rows = list.add(SettleRow.columns) { SettleRow.rows(of: $0.verdicts) }
        places = list.add(Self.placeColumns) { batch in
            batch.verdicts.flatMap { verdict in verdict.places.map { (verdict, $0) } }
        }
        appleUpdates = list.add(Self.appleUpdateColumns) { batch in
            batch.verdicts.flatMap { verdict in verdict.appleUpdates.map { (verdict, $0) } }
        }
        parkAfter = list.add { .double($0.parking.after.inSeconds) }
        askAgainMin = list.add { .double($0.parking.againMin.inSeconds) }
        askAgainMax = list.add { .double($0.parking.againMax.inSeconds) }
        attemptsMin = list.add { _ in .int32(Parking.attemptsMin) }
        safeAfter = list.add { .double($0.parking.disputedFor.inSeconds) }
    }

    /// The places that a batch needs; mostly none.
    private static let placeColumns: [Column<(verdict: Verdict, place: LimitPlace)>] = [
        .uuid("receipt") { $0.verdict.receiptID },
        .text("transaction") { $0.place.transactionID },
        .text("purchase_key") { $0.place.purchaseKey },
        .text("app") { $0.verdict.appID },
        .text("name") { $0.place.limit.rawValue },
        .text("holder") { $0.place.holder },
        .text("taken_for") { $0.place.takenFor },
        .int32("places") { $0.place.places },
    ]

    /// The Apple updates of a batch; none where no app has any.
    private static let appleUpdateColumns: [Column<(verdict: Verdict, update: AppleUpdate)>] = [
        .uuid("receipt") { $0.verdict.receiptID },
        .text("transaction") { $0.update.transaction.id },
        .text("kind") { $0.update.kind.rawValue },
        .text("becomes") { $0.update.outcome.rawValue },
        .text("app") { $0.verdict.appID },
        .text("environment") { $0.update.transaction.environment },
        .text("original") { $0.update.transaction.originalID },
        .date("purchased_at") { $0.update.transaction.purchasedAt },
        .text("token") { $0.update.token?.text },
    ]
}
