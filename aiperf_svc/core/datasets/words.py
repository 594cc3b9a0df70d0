"""Common short English words, of which synthetic prompts are made."""

_TEXT = """
able about above act add after again age ago agree aid aim air all allow alone along also always
among amount and anger angle animal answer any apart appear apple area arm army around arrive art
ask at aunt autumn away baby back bad bag bake balance ball band bank bar bare base basic basket
bath battle bay be beach bean bear beat beauty become bed bee before begin behind believe bell
belong below belt bench bend beside best better between beyond big bill bird birth bit bite black
blade blame blind block blood blow blue board boat body boil bold bone book boot border born
borrow both bottle bottom bow bowl box boy branch brave bread break breath brick bridge brief
bright bring broad brother brown brush build bunch burn bus bush busy but butter button buy by
cable cake call calm camp can candle cap capital car card care carry cart case cash castle cat
catch cattle cause cave cell center certain chain chair chalk chance change charge cheap check
cheek cheer cheese chest chief child choice choose church circle city claim class clay clean clear
clerk clever cliff climb clock close cloth cloud club coal coast coat code coffee coin cold collar
collect color comb come comfort common company compare complete consider contain control cook cool
copper copy corn corner correct cost cotton could count country couple courage course court cousin
cover cow crack craft cream create crew crop cross crowd crown cruel cry cup current curtain curve
custom cut daily damage damp dance danger dare dark date daughter dawn day dead deal dear debt
decade decide deck deep deer degree delay deliver demand depend depth desert design desk detail
develop dig dinner direct dirt discover dish distance divide do doctor dog door double doubt down
dozen draw dream dress drink drive drop drum dry duck due dull during dust duty each eager ear
early earn earth ease east easy eat edge effect effort egg eight either elbow elect electric else
empty end enemy engine enjoy enough enter equal escape even evening event ever every exact example
except excite exercise exist expect explain eye face fact factory fail faint fair faith fall false
family famous fan far farm fashion fast father fault favor fear feast feather feed feel fellow
fence fever few field fierce fight figure fill film final find fine finger finish fire firm first
fish fit five fix flag flame flash flat flavor flesh float flood floor flour flow flower fly fold
follow food foot for force forest forget forgive fork form forward four fox frame free freeze
fresh friend from front fruit full fun funny fur future gain game garden gas gate gather general
gentle get gift girl give glad glass glory glove go goal goat gold good govern grain grand grant
grass gray great green greet grind ground group grow guard guess guest guide habit hair half hall
hammer hand handle hang happen happy harbor hard harm harvest hat hate have hay head health heap
hear heart heat heavy height hello help hen her herd here hide high hill hire history hit hold
hole holiday hollow holy home honest honey honor hook hope horn horse host hot hotel hour house
how huge human humble hundred hunger hunt hurry hurt husband ice idea if ill image imagine in inch
include income increase indeed ink inn inside instead into iron island it item jaw jewel job join
joint joke journey joy judge juice jump just keen keep kettle key kick kind king kitchen knee
knife knock knot know labor lack ladder lady lake lamb lamp land language large last late laugh
law lay lazy lead leaf lean learn least leather leave left leg lemon lend length less lesson let
letter level liberty library lid lie life lift light like limb limit line lion lip liquid list
listen little live load loaf local lock log lonely long look loose lord lose loss lot loud love
low loyal luck lump lung machine mad magic mail main make male man manage manner many map march
mark market marry master mat match material matter may meadow meal mean measure meat medicine meet
melt member memory mend mention merchant mercy merry message metal method middle might mild mile
milk mill mind mine minute mirror miss mist mix model modern modest moment money monkey month mood
moon moral more morning most mother motion motor mountain mouse mouth move much mud muscle music
must nail name narrow nation nature near neat neck need needle neighbor neither nephew nerve nest
net never new news next nice night nine noble nod noise none noon nor north nose not note nothing
notice noun now number nurse nut oak obey object ocean odd of off offer office officer often oil
old on once one onion only open opinion oppose or orange order other ought out oven over owe own
ox pack page pain paint pair palace pale pan paper parcel pardon parent park part party pass past
paste path patient pattern pause pay peace peak pear pen pencil people pepper perfect perform
perhaps period permit person pet piano pick picture piece pig pile pilot pin pink pint pipe pity
place plain plan plane plant plate play please plenty plow pocket poem poet point poison pole
police polish polite pond pool poor popular port position possess post pot potato pound pour
powder power practice praise pray preach prefer prepare present press pretty prevent price pride
priest print prison private prize problem process produce profit program promise proof proper
protect proud prove provide public pull pump pupil pure purple purpose push put puzzle quality
quarrel quarter queen question quick quiet quite rabbit race radio rail rain raise range rank
rapid rare rate rather raw ray razor reach read ready real reason receive record red reduce refuse
regard region regret relate remain remark remember remind remove rent repair repeat reply report
request rescue respect rest result return reward ribbon rice rich ride right ring ripe rise river
road roar roast rob rock rod roll roof room root rope rose rough round row royal rub rubber rude
rug ruin rule run rush sad saddle safe sail salad salary sale salt same sand satisfy sauce save
saw say scale scatter scene school science scissors score scrape screen screw sea search season
seat second secret see seed seem seize seldom self sell send sense separate serious servant serve
set settle seven severe sew shade shadow shake shall shallow shame shape share sharp shave she
shed sheep sheet shelf shell shelter shield shine ship shirt shock shoe shoot shop shore short
should shoulder shout show shower shut sick side sight sign signal silence silk silly silver
similar simple since sing single sink sir sister sit six size skill skin skirt sky sleep slide
slight slip slope slow small smart smell smile smoke smooth snake snow so soap social society sock
soft soil soldier solid solve some son song soon sore sorry sort soul sound soup sour south space
spade spare speak special speech speed spell spend spice spider spin spirit spoon sport spot
spread spring square stable staff stage stain stair stamp stand standard star start state station
stay steady steal steam steel steep steer stem step stick stiff still sting stir stock stone stop
store storm story stove straight strange stream street strength stretch strike string strip strong
student study stuff style subject success such sudden suffer sugar suggest suit summer sun supper
supply support sure surface surprise swallow swear sweat sweep sweet swell swim swing sword table
tail tailor take tale talk tall tame tap task taste tax tea teach team tear tell temper temple ten
tend tent term test than thank that then theory there thick thief thin thing think third thirst
this thorn though thread threat three throat through throw thumb thunder ticket tide tidy tie
tiger tight till timber time tin tip tire title to tobacco today toe together tomorrow ton tongue
too tool tooth top total touch tour toward tower town toy track trade train trap travel tray treat
tree tremble trial tribe trick trip trouble true trunk trust truth try tube tune turn twelve
twenty twice twist two type uncle under union unit unity until up upper upset urge use useful
usual valley value van vary veil verb verse very vessel victory view village violin virtue visit
voice vote voyage wage waist wait wake walk wall wander want war warm warn wash waste watch water
wave wax way weak wealth weapon wear weather weave wedding week weigh welcome well west wet whale
what wheat wheel when where which while whip whisper whistle white who whole why wide widow wife
wild will win wind window wine wing winter wipe wire wise wish with within without witness woman
wonder wood wool word work world worm worry worse worth would wound wrap wreck wrist write wrong
yard year yellow yes yet yield you young youth zero zone
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
