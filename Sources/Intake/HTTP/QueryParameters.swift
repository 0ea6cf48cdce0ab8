import Encoding
import Hummingbird
import Ledger
import Service

extension Request {
    /// A decoded parameter of the query; nil: the query has none of this name.
    func parameter(_ name: String) -> String? { uri.queryParameters[name[...]].map(String.init) }

    /// `?limit=`: how many entries a page has.
    func limit(_ standard: Int, max: Int) throws(Problem) -> Int {
        guard let text = parameter("limit") else { return standard }
        guard let limit = Int(text), (1...max).contains(limit) else {
            throw .badParameter("limit", "a whole number from 1 to \(max)")
        }
        return limit
    }

    /// `?after=`: the place of the last entry of an earlier page; nil: the page is the first one.
    func cursor() throws(Problem) -> ListCursor? {
        guard let text = parameter("after") else { return nil }
        guard let cursor = ListCursor(text) else {
            throw .badParameter("after", "the next that an earlier page has given")
        }
        return cursor
    }
}

extension Caller {
    /// The app that `?appId=` names, or all apps of the caller.
    ///
    /// - Parameter known: the apps of the configuration.
    func apps(_ named: String?, of known: Set<String>) throws(Problem) -> [String] {
        guard let named else { return apps.sorted() }
        return [try app(named, of: known)]
    }
}
