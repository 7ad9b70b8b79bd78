"""The NEXMark queries as SQL for Spark, over views person, auction and bid: answers to hold ours against.

They stay as close to the text of Flink's benchmark as Spark allows: windows are Spark's, means are doubles, and where
SQL leaves an order open the further columns of the rule in our documentation are named. `window`, `slide` are seconds.
"""

from __future__ import annotations

_SOLD = """
    SELECT A.*, B.auction, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra
    FROM auction A, bid B
    WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires"""

_COUNTS = """
    SELECT auction, count(*) AS num, window.start AS starttime, window.end AS endtime
    FROM bid GROUP BY auction, window(dateTime, '{window} seconds', '{slide} seconds')"""

SQL = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """
        SELECT P.name, P.city, P.state, A.id
        FROM auction AS A INNER JOIN person AS P ON A.seller = P.id
        WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')""",
    "q4": """
        SELECT Q.category, AVG(Q.final) AS final
        FROM (
            SELECT MAX(B.price) AS final, A.category
            FROM auction A, bid B
            WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
            GROUP BY A.id, A.category
        ) Q
        GROUP BY Q.category""",
    "q5": f"""
        SELECT AuctionBids.auction, AuctionBids.num, AuctionBids.starttime, AuctionBids.endtime
        FROM ({_COUNTS}) AS AuctionBids
        JOIN (
            SELECT max(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime
            FROM ({_COUNTS}) AS CountBids
            GROUP BY CountBids.starttime, CountBids.endtime
        ) AS MaxBids
        ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime
            AND AuctionBids.num >= MaxBids.maxn""",
    "q6": f"""
        SELECT seller, AVG(price) AS avg_price
        FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) AS place
            FROM (
                SELECT *,
                    ROW_NUMBER() OVER (PARTITION BY id, seller ORDER BY price DESC, bid_dateTime, expires) AS rownum
                FROM ({_SOLD})
            ) WHERE rownum <= 1
        ) WHERE place <= 10
        GROUP BY seller""",
    "q7": """
        SELECT B.auction, B.bidder, B.price, B.dateTime, B.extra
        FROM bid B
        JOIN (
            SELECT MAX(price) AS maxprice, window.end AS dateTime
            FROM bid GROUP BY window(dateTime, '{window} seconds')
        ) B1
        ON B.price = B1.maxprice
        WHERE B.dateTime BETWEEN B1.dateTime - INTERVAL '{window}' SECOND AND B1.dateTime""",
    "q8": """
        SELECT P.id, P.name, P.starttime
        FROM (
            SELECT id, name, window.start AS starttime, window.end AS endtime
            FROM person GROUP BY id, name, window(dateTime, '{window} seconds')
        ) P
        JOIN (
            SELECT seller, window.start AS starttime, window.end AS endtime
            FROM auction GROUP BY seller, window(dateTime, '{window} seconds')
        ) A
        ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime""",
    "q9": f"""
        SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
            auction, bidder, price, bid_dateTime, bid_extra
        FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY id
                ORDER BY price DESC, bid_dateTime, bidder, bid_extra NULLS LAST, dateTime, expires
            ) AS rownum
            FROM ({_SOLD})
        ) WHERE rownum <= 1""",
    "q11": """
        SELECT bidder, count(*) AS bid_count, session_window.start AS starttime, session_window.end AS endtime
        FROM bid GROUP BY bidder, session_window(dateTime, '{window} seconds')""",
    "q17": """
        SELECT
            auction,
            DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS day,
            count(*) AS total_bids,
            count(*) FILTER (WHERE price < 10000) AS rank1_bids,
            count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
            count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
            min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
        FROM bid
        GROUP BY auction, DATE_FORMAT(dateTime, 'yyyy-MM-dd')""",
    "q18": """
        SELECT auction, bidder, price, channel, url, dateTime, extra
        FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY bidder, auction
                ORDER BY dateTime DESC, price, channel NULLS LAST, url NULLS LAST, extra NULLS LAST
            ) AS rank_number
            FROM bid
        ) WHERE rank_number <= 1""",
    "q19": """
        SELECT auction, bidder, price, channel, url, dateTime, extra, rank_number
        FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY auction
                ORDER BY price DESC, dateTime, bidder, channel NULLS LAST, url NULLS LAST, extra NULLS LAST
            ) AS rank_number
            FROM bid
        ) WHERE rank_number <= 10""",
    "q20": """
        SELECT auction, bidder, price, channel, url, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
            itemName, description, initialBid, reserve, A.dateTime AS auction_dateTime, expires, seller, category,
            A.extra AS auction_extra
        FROM bid AS B INNER JOIN auction AS A ON B.auction = A.id
        WHERE A.category = 10""",
}


def text(query: str, window: float = 10, slide: float = 2) -> str:
    """The SQL of a query."""
    return SQL[query].format(window=f"{window:g}", slide=f"{slide:g}")
