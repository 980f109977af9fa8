"""Files as version 0.2.0 wrote them before it put digests into headers (at commit 7f4898c), compressed."""

from __future__ import annotations

import base64
import zlib

# Chain(Dense(2, 2, tanh), BatchNorm(2)) with the parameters 0 to 9 and the state 1 to 4.
MODEL = zlib.decompress(base64.b85decode(
    "c-oy)!ET#C5Vh1F=qI2(yB1&)MZL6Xsvdi()Juub1P^9a7_8mFQEDOOQ~D`6<}>msnOR6uTTxpXF^G9P`{waxxqmYY*Ul70iwrAZC<^mF+L@|zEwH?rvIa"
    "{&O3XYmTXf!bq;R}Q7qMc5eBHU9itTdKzzw=wlH6SA##~A!)GPdBzveTN$FauJrsq(TYTEU@mqW>R3oP9g+8qM9VW2uUgVtVI2pie;sQES8b<Kq(%hP6kw"
    "b0mKPeQ(fvp^+&D+Q(XD9KBLx}Gdz%`2FCffxbnN%+cocJ``&kwR)-^M{zfw!Y}di+CQ{w$SvUXS|39A=vlp6L49775cGQW<!L{i%V_SB5~i21c^ep3Cjt"
    "-i%)`)Rb>gE>=`bfy)S$Xo3KEA(+sL!raXEV&cupuHmGy{vP^aIp<ZVytyAGK;rw(}<&nMOVp?)~Ir69t|6qBIA~_ZAEN~?Mr{y)4G@D1ubYeMD$x^;Diz"
    "g1(6Ui}=zXs?Cu1uWC&JMV?;Etg>n@1;N@(@MQ_&48vkjF>4C2l2tOWa93NX*V>v$yAmHIFfAFmM"
))  # fmt: skip
# Chain(Dense(1, 1)) after two steps of SGD(0.25) with SquaredLoss().
CHECKPOINT = zlib.decompress(base64.b85decode(
    "c-ozmy>HV%7>6?;5Mp8PfOS(URq6SYfK(Mk)GlllLuFg$Y@e~k*=Ky`LWm;4m<=Sv%*4XL01{KB4*WGN3=D{+a34t^Z4v}t?(TQ*`@CN#zqrs*-v~rei8)"
    "FUM^OZB8Y95*6D~Gj6o8C2CE|fNnOjBxnzoXAaZzEV2H;MPimE%n6~kR&V{UE+K$_P2IwKTu+tM1LjA{AcQHvU!-W5W3>OgB=l*LorOfB{Y0T?SUG^DMH="
    "KBGFy~ntCkaOwe%Yb1hHd2oZ#IzbpEdY$;TE(+g@wFALYn*Cznmc6$FX*gR$&p*A%xT*sIKnkeaw%3VAySw9o7tnXCir*c81W>Jn20@>(uUR%K}?mEA;Pd"
    "?=WUh|WyPCTOIW7{$NH4eDph3IgQn%$o(pe4@mYQEx~*(ttf?b)N)RD2N**d7KOD=Jf?AC^<-;1wIq%t)C|g8F>g-#hd#av@W*NhrNl_Hv52f?GkG+zXxK"
    "g)kU~n0%e;y{Ae1_yX3#1hw(>p^_qxpA~>1`R7qgb=~_vC}cY&~mfftE9e<%M`*%}}w{ldM%F2QH9~5GjP2NYMB@bZL4HJO`aVt^deS!dyKBVQ9JDBI90v"
    "0bws?xT5)e@g&B^{?|7<;M(nD{delz`eQvg-F~*K*ZX4q`0}`#h&4Xhem>c~^rdt4^QVi=;o#ltox`_34+?Vn?bV0(KfYhtm`u>+Uu~U$4g"
))  # fmt: skip
