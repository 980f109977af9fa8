"""Files and pickles as version 0.2.0 wrote them before it put digests into headers (at commit 7f4898c), compressed."""

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
# Pickles by name: networks, some of them called before, and what goes with them (`tests/files/test_pickles.py`).
PICKLES = zlib.decompress(base64.b85decode(
    "c-q}M3v^V~wVBMHd<ehrRl?T^LP!u%qjF`25a@&<5*3%qyS+2_Cg;k`-0^-OK}AF&NqbwhTw2jqUwv4gT^8)Kw$Bd^@_cF$Tjj;SK7W9sqR~>tr%T^H=iFZ="
    "p$mk%TqY}-d(YWt?|t^!|1)cSo5Z>z@^iHj(FbuURb0ubqLekFCBCAfwZ2V7K02?LrVuA)l^XJ4=>8b_+-Ou^Yv8qkG}j@>ilGlP;plq}FJu(~z~_@s2VBhN"
    "G*vO;#d=WERQl}g!+{=5Nx2SLXfyP3Ru)oHR#9awrAjiO(TAF3oCQF8&^%{3z=V>Tm{vtR6OfXZ3n>*w6B~@BgoR+MBxkfVXXxRMs&lK_tEN@88+w_NmU04X"
    "&z12VGx>IypGD_`EXzwNmNoR#l`Aw(7V4|))zhn1i7Kj6kx<18GGSyTJh~Co7`iXZWk4bUx*WJ{)v_tNV{21Fdrq#Ag&fEb0GHASQ+8;KKHLpvateD4E-;z4"
    "q>M^*&uXL7&`U*Ac0^1lqL(ak2Ao3)!_H+>_+G#SypfSC4~J6}FS;JiaV3}51f#LY{Lzw~1}cqvIt?wUB=tegz6~_R<QGkI*l7oL&`eZkj?C8m<XjCjry8Bv"
    "c%F^bfk3CDIdKmr4ge0>>oM74lWa*=5O{?pI%Ra}0hYWQ=)6vRV4yo<PB0Q$QuifAkW`mmvPux!kP0hA)lpgeCUR+UHBscj7jd%4Wm7^+3dXW+j-31ojDQfB"
    "Ueh+btsK@@ZY2n-4UV*w7eTyYQlqjAWZ_`AH1Mj2F$0t=YSu$Bym>CG+K20G5w=yqQpQ+CP(h8`6f8qjipo#|EkT#429Z7+L4M@dOUUk71#z%f7)k2EB$rwt"
    "WO)O&Sjx7+nPkoB1iZV!u^{y_wpEr^0}R$rAa#?0Qo4`RR0-&S-ujc02FRinUg8-1UUT!7Hf9BNl_amIp<uc{N<P61|4E+1cVy2opmPYyf+D3?VpO^hgpNQJ"
    "mm1$Kl^ES$CHk4%5fq~w4Mr7cBpQV#nTk;zK_L_>P>c|oek_XN8(1-B*ovW7X0=SNqlQgMvQPs~1H>iE*l(4(oi-M_pFo08vOERZ2wtVrh<TC*_Q?^j^1;CN"
    "nYy1>J96Zlid)Y#y1VGCSNEJ_Boc`qd<{S3U%W^)lHIZP*B*+psoB404tEcG>-WR{BR}%=pJq0``y5m9)vL=}@4tunQRwsMXSVFgU$y3@_f~9wlDXvYubV$x"
    "yq`&Z-uuOf)81fqj(MV@WY~-O8~?EFzVMy<^1HKVmbET@E?-?S`@(x}`#Do|gddP!l7tg%9aOuc4-^yY*joJ04V!M|4}DLRzw(<aKlO^k(FlmX811OO(oAw{"
    "3bB|f1p6p{N#JLD10ev<W`#5nW+)?NgsiG%U_%dV#y_{{ULmI#jdS-NzQ5~j^sye`T3f}eV059W5i|qUKt!v>bWzBPbny^`Cok|+p@&2`OjT4nh{)0KF5q%B"
    "szQ_S;sVAu7<h0XcYfCKTCE<ats$ok=38%?uO4PITnF3AiD{#oIQbH=*p*V69#pi4y81tRk4>2)who%|$4EihV)&!KE_+<MTny<EFJ|yVV3nBVrB#ML!bFyn"
    "r8b$%)L7$zW%R+u=u<#dAsEEH*W>&OG>(T?Puv5q!5qi)SZnD!{SV_IUQAQNF#&x_4wRQ70Zlqa(~^a>MolZwCQDk5Z0|c|Wz&w!%JjerK?X}PK!GbE){H}^"
    "pa`l)vx(Ui9D7cZAcqVt=GvR_lbx29#fu?a4Kd$_$BW~|kj_<_pQC81N&mz9IC?PXWI7L4R*%lc#5Z7)1%8tn0HnfjsH%{4OOMQuxB)??9-ZGg!196JE|_x_"
    "F=sH^LUWFE!R}{3ntBGRr{-Mc63B=G?xa>V!{I8T#e6bJB;jD{2R8iFKQMfdOeh}OU=-LtY8xnK^X_CWh(K2)xx<J)M{RtUW#c1FmQ@)(;NWX4NIkgFd~ysf"
    "Eh&nz+=zfu&hJ`w<7xO|&Vf-{DhdzP&Bf2}EEn{_pj{$Q%!M@<=)sHts+v-;_5~H3C-5es@xq#$fsaOJ(*FN$c0UMkhAQ^MkO@GgqKX-8GGKG_crJsns8TK`"
    "K;~HlR%Fk!py?_c>G;BJ^@Av1VvV$rfsM3Eq|pE@^MockCxZ@-J=R30_lr07X%X=*hTD1n;R$bF%gq1ZiMMSCZD&?*z4QIAdj62F+^TF@c#Y01IRDh_j5%BK"
    "P0!vY-}k@{=97~y+_r7^-ORPCYDd)Vxs}<{yRc+@<af-Y&vq=D+520j=g+e*d!%$*{_1;{EV<#-f6pg|{<XLB^m~~1-;Doh=ArHR@%KM{+ulnnnR6Sy>`5`Z"
    "=I%eGf;n{BJm&VL&F}5Iua2pEDZh8!EpN=dVdCVW7i_Cwo*KP+e^t){=A6wFzx39QWmb$Bdq?l>U(Y>lecR5LFP^~c>Ad1M$vaMBe)h*lZn*rONembM`Nu!#"
    "8Od}^2s~YTZWS}s`@`$6ZjLfI!2*X2r;f|WldurccvFPc=#=hQh$?O9JOb$#a#9K%4X8$3bSNh&B5{_eNDnnzFSglFj~78q1C0d>>W7rP0A7*>>ZOXL$ti)Q"
    "93*rf=sQOhNZ~TMG+>Aa^g%Qcp<ybZhk04bu~56KMmNAAt+f>#d>8B(%2!Ys4V5%9)nD9wFR6G*c!fX-eAm{{NCJ@_hbbKG%-|mPb{cqq7<p-*&=Ok)X5M6a"
    "_~l26KY;{|8jg);1PC*(R7g>ICkSat4hUI7isoq3Nbp%yB6^wS0x5`I(n9(kd=vHr4i(xIDRWIms@=U21X%)WwoJfY`ZO9mdI`&mt*wGAK;XpFc2ESlwsN><"
    "1nC>|2Ib0To&*!XySSyH4>t&o#vB7Cpkx{Zj=c<(ccH=dTDw<aBB_YU0N#*Q;Yd5&*zn|#XsltGsG=sRO;nXaTEqIyQmT+Rut~BXAn(x!;TM*)r|?i;ZVI*("
    "UZ^DnxsXt)JsPPqDFj$D=8BWNkOs|lvJ5|^2<ahkajJ={#-2wryI=-0gC-Nwfu_1bx*<Ab?JCT2Nd@Pa_SOd5BYpR0q8!|i7O)duB`QK8?jTkPRZIcuqiUbI"
    "+I~mdMzb?j-2?bMDz>+Rj@p8w>8L4MvY?~p8L*><&Np{=f!!Uus2W||cwWT-5Z)YQz~~~#jldBAkb?%&0w=Hb(M}miJ4zc(4QQc>BaWKTVpzK*;-E#B9+@P%"
    "5XceU`;Z%8acF?Ke}To`xbKLIY2%S>$X@^ia^T_tb0g*5R6T?mJKjb=@(}N{*YoYQtc#DaK<Jx2eqZbF&Lftw)hD1UIn6q766C_PvyTHo^z8sqfENR%97Ywi"
    "CLK`H7S3=yJ`^xh5@w)AQAnXEW2qNhAOzb4$O={YTWV;2UwS&@zqw9fZK^~kp_5Vdx7*X189{TPoI4YpMS40;of<+Tpa`tQUE01y;7MJ;<wU6ZrsKs0jBhaT"
    "U^yx;FotpzJ&`?~*uXs<w|!g>ykdSMXi2qGzV*w{`sG7bcIHZo+?m-0N6ySHD9p^z)Gl{MHc&DJ7AR!7G{{!3usT0vK*Y?2n`Ske)6P+YA`00y6}e6~l*0`G"
    "8QY0x8pi6&NMP-{PXO&R>=aw~rKC*8NN5S1#h=g;FF>N4daOm>j(O`}={`7e2eZ3j`+>i{yCa{u7j0R#W-rs*v;KpJUVe}{7~4N;_T)G7`=9;GCU)`*%sCa?"
    "r_Oxs5c6*jiw|Fw_>hTgd->6?*YD3i^yDu$O=Aw_zc^I2=(UgE&c9vy<Nx|y<WA<gNn;+qdvo!QHB)}IcDZMFe$89a^UwR}Z~4!r>YqH6eJ9_u<?3f{y8O+2"
    "<e8r0*xa7{;YWLKIpyM)nT^RmUNdoPFB7`$_5FL49r;}7e|Cpn`#Up!s(0CfMf>vdyU&cAe9iNuXhRBGNeZNPM;bUkS=$}E@pUfMRDa+DCgV^1YweK#WVW^q"
    "?R{j|JNb8iwET?6*Bs3I@A^2(#b3*hl>HkonYo*J^1~|y;gsI|&dSaEV~_93KlRGwx~sUy@|T{vxb@b=o6PXPcbxsVj;ENr4m>?Q^T_ke%5^=TSAVcKzc+v2"
    "(;2_mk>B;n%@4Fx9$;R7roDXBzR#E?8|LnxFy&BwLUhl>&{>BGzt}6$Hb8&QD>@0^YyY(G#_{~G*D|k89rI}Qt*e;iw2PNMvG?Zu#K&)XPu%{K{8JOAK2iDD"
    "I%d?ou3v87qUDX67skDN>mB*~*F1UIZ?v29FMfD<Y4)oRn9sHRtZn>3=E{1{5AO;eWE%I)*s!4FAoJMp_5W8?{~`10Z|AM6-g%Ij{^1i1yRJCMOxpbEx_hS`"
    "Bz!_HNNyXvSeK)F=v~7T$9mT=q^~C>cHvzzzrg|Z%IMq8i@vMzYuq=FUqjGPGz^VFW6@L+zx=9*owmKqRkP`VjG!V3-<qn5sGe@vtuCkmWmQVUKE}*>>-}*t"
    "eDOx!=dOO?lUp9%wnz_WxOUcr9<KXI3?YsUlOy%7B&V=w64;#zsTDa%%&M#aa_E4uAje;h2aIks9p`a1s20sar_p<N8U<0knbS=lIHx=J1mtvc-Ob5Cc5hBG"
    "q6w<xv0|sCV0Bd;uo|Tegy(H(obPBrSz6#^-0EXxY}ig{2&d9wj%E%CJ)l6oN7Pzq2kkWaqzWJG#y?N%p{xKBmZg;>qE_}N&yf}+?L@kYQ!9QcAb4KGO&~px"
    "k`$a~II-2_t~t4Q&&PLvX`ei=`yn3zjdYhu!30#$VcnmEWVFu3AQ_ki10Q|%mzOFxoN6UE4IMvyt5&avm8H5LbGOXJo=ww4i$>cB(HI*Q8f&A`OHGsHg%pIm"
    "MrQr$HygJOzY=6Jy1z{1jFOY39N65_#VyVF$xYf^YVXKG`O((lc*aF_VC*3AHkpG%56&~6+}O>dwl+4l@!VIgdi|vrwm(D*#;}u6#I6J7YA<q>>jdT;xYyBC"
    "SGcqfe<);f1o?#~14h+|ei|Yg|9<HB+`62_O^3#%7rJyUC8X2+{5l@Q?ifI0czz(y?$^K_lGgjT>z0E+7q@1x11+~@WIE@OeO&eM<8{?1qw)AjFM+rus4UkC"
    "XKB!J6(_F1LWL}-nhefOxI)7jtpX0VEGhD$ERbXv%oPSqVOSRneh`YJ7z4RqGzI%yd|xyTY6r~5RQt^&eAJgzL*Q_n0PHy-jR|0)(nLSnY5C!pHqI3>L2eWA"
    "PKJ=UaW*U>d_%rBW#EW0?;qW1`S2}Y;f+?qKtUtwlswpJ;`X3(TWr<*IB}P;pGeRFM;A-L=cGBgKtgtTiIJ7ecY!!cOkj+{+dZfxlGwHDffgu%1Xr8VZ^sPl"
    "BG6_x#4gDSE%=7RhQ0_q))aIRZginKEJWldca>%pRs=^+zv)JTX+TMfSP?<nONqj<?g6kXp30C66nE5;D*{C?gF(5^T!kuRa+1u+9j?Lh6qGk&AGmS_P90*I"
    "%90Wss~Smdcu@UPs(&m^bs!5VAu}w8n<_95S_Z|H1{RvY1-h8#!JP5EA8N5T&mvy;)EcN2Zx5lX4RksDrQt6Je=_{3@V7GVL94n^djfTIqtyv?<#NM?V=&^;"
    "H4X-FW#)y6UF-rwTn22w--4y(2%mS|u8^7l_{P~3zFjopL#=z{cyT<8zbs%nBI+6}?_@4VH`q9b*4Ff&-WVSW(wl)c#l09A`US=V=Ho20%6kBv0ibgLG~9^+"
    "C-!xR6v$au;U;Hcm;)FXHwMiTY()3SL@n^wMd@eO{JesEYL@5$k~1&{9SU9YS<G7?a4Nb7QS}<=c=RA^USOf0=w(ghF{*(IxUL@%!n$xH+KhgM?r?1=R9E9j"
    "jR7K2A~g?@+BqOKm(1#HnMDCG27n%G$ATW9PQ<tY8&nzf&^B9-I82~j1R}^%g*MQGT9QK#qdeM;o<`4-9VcB1SBI6h4lAwKR5_%hop6|sYe%iV4tDZ&TA^^j"
    "z5oRI1*rU7p?wwNRGishy%uof!d)5a2^@*;M33VXmrZsMH%gfQ8O+`a^S1-U7JzvSpq>Q2t*_I>w4~)(Ec$Pm``)LQkcleV13~XpqXV$H_v1KM-32ZhmWEi<"
    "g@Bo(%k*H(eA@`cbrJk}(Sr%qxYpoE>R$#SN#r#yT}66R(d%eSzuju-TQ1iEqg^ZTbW6>FzKyGrlmyNn(r6Xuapc>_PK?w&_^Ub)$5?V%3sxSs(HeHU(V?Wu"
    "94VyqkVVWPbUe38#qG8DUmgB8%h=HGa%tE%xm@xb`Rm#ts=az3CkiRzrmN}KZLF(f5K0&}n^j2Wl^_QbqSx5CB0Gbg$#jpCG+W_~0O4;}P-x(5;o_L<IB<x;"
    "JZrK$2lPXwM$6YQ4vh4E97;2AzHNdEfCp&03_K5Z6C$~$ucfi+xT`*#liN4iXb>P>Hm}j~N`sw@y&^$!L|2t)$<|#Zx*~_4rh0J?N%Xav{|7i{U?B"
))  # fmt: skip
