package import Encoding

extension JSONValue {
    /// Goods as they stand in answers and events.
    package static func goods(_ goods: [AppPolicy.Goods]) -> JSONValue {
        .array(
            goods.map { good in
                let bonus = good.bonus.map { [JSONValue.Member("bonus", .string($0))] } ?? []
                return .object(
                    [.init("item", .string(good.item)), .init("amount", .integer(good.amount))] + bonus)
            })
    }
}
