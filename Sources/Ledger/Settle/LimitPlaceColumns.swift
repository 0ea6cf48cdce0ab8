import Foundation
import Postgres
import Purchases

/// What the settle statement takes of the places that a batch needs, by columns; mostly none.
struct LimitPlaceColumns {
    private var receipts: [UUID] = []
    private var apps: [String?] = []
    private var places: [LimitPlace] = []

    init(_ verdicts: [Verdict]) {
        for verdict in verdicts where !verdict.places.isEmpty {
            receipts += repeatElement(verdict.receiptID, count: verdict.places.count)
            apps += [String?](repeating: verdict.appID, count: verdict.places.count)
            places += verdict.places
        }
    }

    var values: [Value] {
        [
            .uuids(receipts), .texts(places.map(\.transactionID)), .texts(places.map(\.purchaseKey)), .texts(apps),
            .texts(places.map(\.limit.rawValue)), .texts(places.map(\.holder)), .texts(places.map(\.takenFor)),
            .int32s(places.map(\.places)),
        ]
    }
}
