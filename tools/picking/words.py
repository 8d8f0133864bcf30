"""English words of the default scorer: stop words, words of little meaning, and groups of related words.

Plain data, written by hand; every word is stemmed before it is compared.
"""

from __future__ import annotations

STOP = frozenset(
    """
    a about also am an and any are as at be been but by can could d did do does for from give had has have he hello help her
    hi him his how i if im in into is it its just know let like ll looking m may me might my need no not of on or our please
    re s she should show so some t tell than thank thanks that the their them then there these they this those to up us ve
    want was we were what when where which who why will with would you your
    """.split()
)
"""Stop words, ignored in queries and tools."""

WEAK = frozenset(
    """
    ability able access accurate actually add additionally advice all allow amazing another anyone anything anyway api app
    appreciate appropriate area array aspect assist assistance attention available aware base based basic become believe best
    better bit boolean brief briefly business call care case category certain chance check choose clear close code complete
    comprehensive consider considering contain content count couple curious current currently custom data date day deal default
    definitely depth desire desired detail detailed details different difficult directly discover discuss easily easy effective
    efficient elaborate enable end endpoint engaging enhance enjoy enough ensure entire especially essential every everyone
    everything exact exactly example excited exciting expect explain explore express face factor family false fantastic far
    favorite feel few field figure filter find fine follow following format friend friends full fun function furthermore gain
    gather general get given giving glad go going good got great guide guidance handle happen happy hard having hear helpful
    high highly hope hoping http id idea ideal identifier identify immediate important improve include including individual info
    information input inquire insight instance integer interest interested interesting involve issue item keen key kind knowledge
    lack large last lately latest least less limit list little long lot love main make many matter max maybe mean meet mention
    method min mind more moreover most much multiple myself name necessary needed new next nice notable now number object obtain
    offer ok okay one only option order original other others output own parameter particular particularly per perfect perform
    period person personal planning pleasure plenty possible potential prefer preference present pretty problem process proper
    properly provide purpose put query question quick quickly quite range rate ready real really reason receive recent recently
    recommend recommendation relate related relevant reliable request require required requirement resource respective response
    result retrieve return right said same say search second see seek seeking seem service set several share significant similar
    simple simply situation size small someone something soon sort source specific specifically specify start state status still
    string stuff successful such suggest suggestion suitable support sure surprise system take taking talk target task text thing
    think thought through time tip title today together tool top topic total touch true try trying type understand unique unit
    until upcoming update urgent urgently url use used useful user using usual valid valuable value variety various very via view
    visit wait wanted way well whether while whole widely wish within without wonder wonderful work working world worth year yes
    yet
    """.split()
)
"""Words of polite requests and of many tools: a match says little."""

FAINT = frozenset("api available data detail find get name one system use user want way".split())
"""Words of nearly every tool: they only break ties."""

GROUPS = tuple(
    tuple(line.split())
    for line in """
    weather forecast temperature rain rainfall precipitation snow humidity wind storm sunny heatwave climate meteorological celsius fahrenheit
    finance financial stock crypto cryptocurrency bitcoin ethereum nft forex etf dividend equity trading token blockchain market money invest investment
    money currency exchange usd eur gbp dollar euro yen pound
    news headline article journalism development
    flight airline airport airfare plane fly
    travel trip tour tourism tourist attraction vacation holiday itinerary getaway sightseeing journey destination museum landmark
    hotel accommodation lodging hostel motel airbnb resort stay
    house home property apartment estate housing condo bedroom rental realtor mortgage
    rent rental lease tenant landlord
    shop shopping product purchase buy store merchandise discount retailer
    price pricing cost fee expensive cheap budget
    research paper study academic scholarly scientific journal publication literature discovery discover
    course class degree education curriculum lesson training tutorial
    movie film cinema thriller documentary actor director genre
    show tv series television episode streaming netflix watch
    music song track album playlist artist singer lyric audio tune listen
    photo image picture photograph photography
    video clip footage youtube
    recipe cook cooking dish meal ingredient cuisine
    food restaurant dining eat dinner lunch cuisine menu pizza burger
    diet nutrition nutritional calorie meal protein vitamin carb
    fitness workout exercise gym muscle
    health medical medicine disease doctor patient hospital clinical symptom
    therapist psychologist psychiatrist counselor counselling therapy
    salon hairdresser barber stylist hair
    law legal lawyer attorney court regulation lawsuit
    job career employment vacancy hiring recruit recruiter
    resume cv
    email mail inbox gmail
    message sms chat conversation
    calendar event schedule appointment meeting reminder agenda
    concert theater theatre play show ticket festival broadway event
    map location locate place nearby nearest address geographic coordinate latitude longitude
    route direction navigation distance
    car vehicle automobile auto
    taxi cab ride uber lyft
    train bus subway metro railway transit transport transportation
    package parcel shipment shipping delivery courier tracking
    translate translation translator language english french spanish german chinese japanese
    coding programming software developer script
    repository repo github gitlab git
    file document folder directory
    website webpage page site url link
    calculate compute calculation calculator evaluate
    add addition sum plus total
    multiply multiplication multiplies product times
    subtract subtraction minus difference
    divide division quotient
    sort arrange ascending descending
    convert conversion converter transform
    compare comparison versus
    summarize summary summarise summarization
    analyze analysis analyse analytics examine
    write writing draft compose essay blog
    chart graph plot diagram visualization visualize
    game gaming play player
    sport team match league football soccer basketball baseball
    history historical war battle ancient century treaty
    horoscope astrology astrological zodiac astrologer
    gift present birthday
    book author novel reading library
    dictionary definition vocabulary synonym
    joke humor funny
    quote saying proverb
    animal pet species
    plant garden gardening flower crop
    school university college student
    seo keyword ranking backlink
    social twitter instagram facebook tweet hashtag
    tax taxation
    loan mortgage credit debt interest
    bank banking account
    pay payment checkout transaction
    memory remember recall
    password login authentication credential
    scrape crawl scraper crawler extract extraction
    domain dns whois hostname
    population demographic census
    fashion clothes clothing outfit dress wear
    beauty makeup cosmetic skincare
    time timezone clock hour
    delete remove erase
    """.strip().splitlines()
)
"""Related words: a query with a word of a line also matches, with less weight, tools with another of it."""
