// The formats of 1 to 3 bits whose blocks name points of a grid: IQ1, IQ2 and IQ3 of ggml. A point is 4 or 8 values, each
// a place in the format's table, and their signs are a bit above the place.

#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "model/types.h"

namespace forerun {

// What places stand for. Those of IQ1 are eight times -1, 0 and 1, shifted up or down by an eighth.
inline constexpr std::int8_t kIq3xxsValues[16] = {4,  12,  20,  28,  36,  44,  52,  62,
                                                  -4, -12, -20, -28, -36, -44, -52, -62};
inline constexpr std::int8_t kIq3sValues[16] = {1,  3,  5,  7,  9,  11,  13,  15,
                                                -1, -3, -5, -7, -9, -11, -13, -15};
inline constexpr std::int8_t kIq2Values[16] = {8, 25, 43, 0, -8, -25, -43, 0};
inline constexpr std::int8_t kIq1Values[16] = {-7, 1, 9, 0, -9, -1, 7, 0};

// The points of a grid, ascending, a byte a place. Point p is the number sum(place[i] * BASE^i), and `gaps` has what each
// number is above the one before, the first above -1, as characters from '#' (1) to '}' (91); '~' adds 91 to the next.
template <int NUM, int BASE, int LENGTH>
constexpr auto grid(const char* gaps) {
    using Point = std::conditional_t<LENGTH == 8, std::uint64_t, std::uint32_t>;
    std::array<Point, NUM> points{};
    int number = -1;
    for (Point& point : points) {
        for (; *gaps == '~'; ++gaps) number += 91;
        number += *gaps++ - '"';
        for (int i = 0, rest = number; i < LENGTH; ++i, rest /= BASE) point |= Point(rest % BASE) << 8 * i;
    }
    return points;
}

// Which points are in a grid is a fact of the format, chosen by the authors of llama.cpp (ggml-common.h, MIT).
inline constexpr auto kIq2xxsGrid = grid<256, 3, 8>(
    R"(#$$$$$$($&$$$((&$($(.*$(&0@..$4F<$(,$($&.,$(.($&.06$,:$4@4(&$(.&$($8::Z,h$(,*4.(&0(.4*,R,T(.&.6LBD0f$(4>)"
    R"(<&fPN$(82*$T*R$r$(40J>6~':.R~EV$((&$((*&,$(44>*&:*:*,@(.F28,^t$(4&TL&,ZB4(&($F(:<Phr$:lHL,(B^^p(4:@JZ@F&)"
    R"(x$P~M~~B$(6>>..bj$(&04FBD864Htzl(.(P8J\T6,z~{N~YD8@l~'~~tR)");
inline constexpr auto kIq2xsGrid = grid<512, 3, 8>(
    R"(#$$$$$$$$$$$$&$$$$$$$&$($$$&$&$,$$$$$$$$$$($$$&$((&$(4$$$&$(,$(&0*6$$$$$$$&$($$$&$$&,$(4$$$&$(,$(,*>$(0&)"
    R"($>:$$$$$$(&($((.4*$$(4>(64(N&,$$$$$$$&$($$$&$(*$$(4$$$&$(,$(4.$0$$&44F$$$&$(,$&$.(>$(4X.8R$($2.68&PfL$$$)"
    R"($$$$(,$(44,$(4(2B6D:&$(2$X>,B.2^&($,860\.:.H&$6$$$$$$$&$($$$$$$(&($(4$$$&$(,$(4&2*$($0$X$$$&$&$,$(4.2$(.)"
    R"((N,*8(P$(4&**D,6(2Bp$$$&$((&$(4>$(&0$V@T$$(,*4,4*(R(JB8*.2*D>,$~5:$(4.*.6$~-0@20n4&NzVTbD*D$$$&$(*$$(4$8)"
    R"($$$$&4,(H4F$2(&$($$0426@P6H>(28,$8*~'D(*,&$(402:6>l66&<((bH$N|JH^BF$&$,*PP(D&$&6>4FJ~W66,$&R((X$P$H2)");
inline constexpr auto kIq2sGrid = grid<1024, 3, 8>(
    R"(#$$$$$$$$$$$$&$$$$$$$&$$$$$$$&$(&&$$$$$$$$&$($$$&$$$$&$&$($$($($$$&$(*$$$$$&0&&&**$$$$$$$&$$$$$$$$$$$$$$)"
    R"($($$$$&$&$($$$$$$$$$&$&$$$$$$$&$($$$&$(,$$$$&0&$&$(,$(4$$$&$$$$&&$$$$$$$$&$(&*0$$($$$&*&$&$(,*4,$*&$,D.$)"
    R"($$$$$$&$$&$$$&$$$$$$$&$$&&$&$($$$$$$$$$$$$&$$$$$$$&$($$$&$2$&$&($(&($2$(4$$$&$$$$&$&$$$$$$$&$($$$&$(,$$$)"
    R"($$$$&$($$$&$(,$(4&$&$(,$(4<$$$$$&$&*$$$&$(,$:$$$&$(,$(28,(40J$$$&$$$$&&$$($$*(*&0$$($$(*$$($(,$(4*.&$&(:)"
    R"($2&$$$$&$&$($$$&$(,$(4&$&$(,$(0&>$(42H&($2$(<4$$(\8.>.$6$$$$$$$$$$$&$$$$$$$$$$$($(&$&$($$$&$$$$$$($$$$$$)"
    R"($&$($$$&$(,$($$$((&$&$(,$:$$$$$$$$$$$$&$$$$$$$&$($$$&$(,$$$$$$$&$($$$&$(*$$(4$$$&$(,$(48($&$$$$&$($$$&$()"
    R"(.(4$$$&$(,$(400$(4X$$$&$$$$$$$&$$$$$$$&$($$$&$2$$$$$$$&$($$$&$(,$(4&$&$(,$(2$>$$$$$$$&$($$$&$(,$(4$$$&$()"
    R"(,$(4>$(0&X$$$&$(,$(*,>$(4X2L6&$$&$$$&$(&$&$(.(4$$$&$(,$(420(40B*&$&$(,$(4>$(4*202d2$(J6.<vN*$$$&$&$&($($)"
    R"($$&*&($2$&$$$$&$($$$&$2$(2$&&$$2$(P$$$$$$$&*$$$&$(,$(4$$$&$(,$(4*6$(2$X&($2$(H*$:8V8$.4*$&$$$$(($$$&$(,$)"
    R"((4&($2$(*H$(4T&$$$&$(,$(400$(4L&*B2D$(0&V$D&~14&&&*($$(H(>8D(.&$@&$2&$(4D0(2~-V2TP6>$,$&F6)");
inline constexpr auto kIq3xxsGrid = grid<256, 8, 4>(
    R"(#$$'$&#$)+;$&$'$)&%$)-.*$$')$)$&,(0&(#$-E56'-.$&(52U96&$702$'$)$'$$-#:$))$Q$'$))D($0+/2-&EJ&45.o0B$)$'$&)"
    R"(%+A$$%$))=&#*$)(#$/#/6)&N&C0:6,=g$-9>)$)$7/'($0+-$=$'/7214_15((.=A47J76-0$.&o61#2(3@AG-C07o%$0T99*(29A0B)"
    R"(*K?-&E*9qN0T2$0?B@GF(hCGSJ0T$$#42N,L='8/07C2A$4f)");
inline constexpr auto kIq3sGrid = grid<512, 8, 4>(
    R"(###%$###$$$#&('$%$$$'$)%%###$&#&%%&$&)/&'(#&$#%%%&%&(%$$$/%*(&%$)$%(&$/$&%-&$%((%(1,$.$&'(&$1'-%$031)$$.)"
    R"($&'/&6##$&#$$$#$)%$0$%+(#$%$&')%()$0($,%$#&((%,%,)%%#%((#&'3(-$'$/$)&$&7)%()$1I&%/$=$'$).&3(*#$$$#$$$%$&)"
    R"(#$)$$%$/#%$%$(%&%%&%():%%,$')$,&,%&$%&+$'$)(0-(+%)%&;%)'+/#-/*$',>&6&/$-'<)$$$%)$$'$%$,(*$$)'$/2,&$,(,$.)"
    R"(;)&'$&#+$&(0*('&)3(&/)$-',,/55B$/$-E&((&%%))2,'$$)('((&6$''&,'1%(.'$'$)&E$4-#;.$,C;36:'--(;(&(0&%%.('$$')"
    R"()+B(+,'(/9'#1/'.((%.,.F.5$YB$0Y$$.$722)?84(-'(*.'1W010%;67=K$W&%+$.$.(2)-1$>%&(%)3;:%08&(':L2B9I)");
inline constexpr auto kIq1Grid = grid<2048, 3, 8>(
    R"(#$$$$$%'$&$'($$*'$&$''$&$&#($$$#'(&$&$&$$$#)($$*'$&$''$&$'(('&$$&$$%%$$&$-$$*(((&&#1((($##*$$*$&&##$##$$)"
    R"($$$$$+%$$$$##$0&.$($$$%#&$(($&-$&$''$&$'(&*'$&$''$&$'($&'#(*#%($&.$$$('$&$''$&$'((%%'$$$$''$&$,#$&'#($(&)"
    R"($&$#%.$$'%($$$$$$$&$&(&######$$&**$($2$$*''$&$$$&$*($$*(&$'#$#%&'%##$$$##$&$$(&$%#$##$$#%&$&$$##$$$$$$$$)"
    R"(##'####$#$$##$$$##$$##$##$##$$($##*##$$&&$##$$$%###%$#$##(%%$*&.&*($$$$&$$##$$$(($,0$$&$%)##$&$##$##&&*%)"
    R"(#$$&&$+))$)$$$$$$&&$((&%,$&$''$$$$'((%%'$&$''$$$$'($&()#&($$$$##*''$(('$$%'$&$'(&$(('$$%'$&$'*$$(*##$&$$)"
    R"($(*($&%%.((($&$&$#%&$$,$%#$$$$$$('$'(((('#('$&*,$&$''$&$'($,'$&$,$&$*%$&(,$&$($$$(''$'#'$&$,$&$'(&$('$&$)"
    R"(''$&$'(&*.&$$$$$$2&%&&#$$$&$##$$&$($$$$##$#'$$$$$&$$'##-($$*(,$&&&+',(.%+($$$$##'#$$$$&$$$$'#(%#$&$$##$$)"
    R"(&&$$##$$#$####%$##$&##$&$##$#'$$$%%'#$$$$&$$$$%##$#$&$$&%&&#($$*(%&')'$&$&$$$(($$$((%#%#%#$&$$&&&$####$$)"
    R"($$#%($&$##&$$$22$$($$&&0,($##$&$&$$&$&$&$##$($*$($%#&$($##$$####$&##$$$##$$########$$##$&$($##$$&&$&($&$)"
    R"($*$&$$##$&$+'$$%#&+#($####%%$$$$##$###$#####$####$$($$$##$%$#&$####$$#####$#$$##$$#######$##########$###)"
    R"(##$$#%###$####%$##$$###$##%$#$#$#######%%#############$$#%&$####$%&%$###'##$$&$&)'$$$$####$$##)'$$$$&(%#)"
    R"($&$$##$(($##$$########$$##$%%%%$####(*%)&#&#$($#%%###&$$$$)%$##$$.*$$(*(&##$$$$$%/*($$$&$(#%$(%%%#$(#%&')"
    R"(%$(&$.&$-#&*##%/(&*1#$#%$&$$$$$$$$##$##$$*#%$$####$$$&($$$%#$0##$$#$##$%$##$)$#$%#$#%$##''(''##$&$$$$###)"
    R"($#&$%$$&&$##$%$%1$((,$&$((('*'$(&($$$$#%##&$##$$&&%#''($#%.&#/$&$&$$&#%))%$(&$&$,$&$''#$$$('$&$''$&$'($$)"
    R"($(($&$$$###'$$(%'$$('$&$''$&$-$&('$&$''$&$/&.$)%&$$&0&.(&$&($$#%$&$##$#'##$$$$$$$$$*0&$(($&##&%#$&%'()&()"
    R"($&$''$&$$%($&(%$$&$''$&$'#'$$*($$$$$$&$$,,$('$&$''$&$'($$/$&$''$&$'(&##((&$($$*#'($$$(($$$$&$$$$$$$&'#$#)"
    R"(#$&$*$($$&$$$(($&(*$$$$$$*$(*$-%$$&&$*&*$$####$##$*$(##$&($&$$##$##$%%%#$$##$$########$$##$%%$&####$##$$)"
    R"($$$$(&%$'$($#%#$#$($'#&#%##*$$(,$((&&$$#%&#+(&$(*$$$$$$$##$$&$$$$$$##$&$#%$$($$&$&*++*$$$&$&.($##/$&$''$)"
    R"(&$'($$$-$&$''$&$'%%$$$#1$%%$$$$,'$%$/&$#)&&$'(&$('$&$''$&$3(($(%#$$$%###(>$$$$$*$&$($##$(&$$##$&$$2(&%$%)"
    R"(*$%%$##%$.&&#$%$$&$&$,$&$-$$$-$&$''$&$'*&%%(*&&$&$-'/$&$,$&$-$$/$&$''$&$)");

// The bits of every byte, a byte each.
inline constexpr auto kBits = [] {
    std::array<std::uint64_t, 256> bits{};
    for (int byte = 0; byte < 256; ++byte)
        for (int i = 0; i < 8; ++i) bits[byte] |= std::uint64_t(byte >> i & 1) << 8 * i;
    return bits;
}();

static inline void put_point(std::uint64_t places, int signs, int place, std::uint8_t* codes) {
    places |= kBits[signs] << place;
    std::memcpy(codes, &places, 8);
}

// Two points of four values.
static inline void put_points(std::uint32_t low, std::uint32_t high, int signs, std::uint8_t* codes) {
    put_point(low | std::uint64_t(high) << 32, signs, 3, codes);
}

// Eight signs of seven: the number of those that are set is even.
static inline int eight_signs(int seven) { return seven | (std::popcount(static_cast<unsigned>(seven)) & 1) << 7; }

// A scale as it is meant, in halves.
static inline std::uint16_t odd(unsigned scale) { return static_cast<std::uint16_t>(2 * scale + 1); }

template <class Word>
static inline Word word_at(const std::uint8_t* p) {
    Word word;
    std::memcpy(&word, p, sizeof word);
    return word;
}

static inline int nibble_at(const std::uint8_t* p, int i) { return p[i / 2] >> i % 2 * 4 & 15; }

// Eight times: 4 indices, then a word of 4 signs of 7 bits and a scale of 4.
static inline StoredGroup read_iq2_xxs(const std::uint8_t* block, int j) {
    const std::uint8_t* indices = block + 2 + 8 * j;
    const auto word = word_at<std::uint32_t>(indices + 4);
    StoredGroup out{};
    out.scale = odd(word >> 28);
    for (int i = 0; i < 4; ++i)
        put_point(kIq2xxsGrid[indices[i]], eight_signs(word >> 7 * i & 127), 2, out.codes + 8 * i);
    return out;
}

// 32 words of an index (9 bits) and signs (7), then 16 scales of 4 bits.
static inline StoredGroup read_iq2_xs(const std::uint8_t* block, int j) {
    StoredGroup out{};
    out.scale = odd(nibble_at(block + 66, j));
    for (int i = 0; i < 2; ++i) {
        const auto word = word_at<std::uint16_t>(block + 2 + 4 * j + 2 * i);
        put_point(kIq2xsGrid[word & 511], eight_signs(word >> 9), 2, out.codes + 8 * i);
    }
    return out;
}

// The low bytes of 32 indices, 32 bytes of signs, the indices' tops of 2 bits, 16 scales of 4 bits.
static inline StoredGroup read_iq2_s(const std::uint8_t* block, int j) {
    StoredGroup out{};
    out.scale = odd(nibble_at(block + 74, j));
    for (int i = 0; i < 2; ++i) {
        const int at = 2 * j + i, top = block[66 + at / 4] >> at % 4 * 2 & 3;
        put_point(kIq2sGrid[block[2 + at] | top << 8], block[34 + at], 2, out.codes + 8 * i);
    }
    return out;
}

// 64 indices, then 8 words of 4 signs of 7 bits and a scale of 4.
static inline StoredGroup read_iq3_xxs(const std::uint8_t* block, int j) {
    const auto word = word_at<std::uint32_t>(block + 66 + 4 * j);
    const std::uint8_t* indices = block + 2 + 8 * j;
    StoredGroup out{};
    out.scale = odd(word >> 28);
    for (int i = 0; i < 4; ++i)
        put_points(kIq3xxsGrid[indices[2 * i]], kIq3xxsGrid[indices[2 * i + 1]],
                   eight_signs(word >> 7 * i & 127), out.codes + 8 * i);
    return out;
}

// The low bytes of 64 indices, their top bits, 32 bytes of signs, 8 scales of 4 bits.
static inline StoredGroup read_iq3_s(const std::uint8_t* block, int j) {
    const auto point = [&](int i) { return kIq3sGrid[block[2 + 8 * j + i] | (block[66 + j] >> i & 1) << 8]; };
    StoredGroup out{};
    out.scale = odd(nibble_at(block + 106, j));
    for (int i = 0; i < 4; ++i)
        put_points(point(2 * i), point(2 * i + 1), block[74 + 4 * j + i], out.codes + 8 * i);
    return out;
}

// The low bytes of 32 indices, then 8 words: 4 tops of 3 bits, a scale of 3, the direction of the shift.
static inline StoredGroup read_iq1_s(const std::uint8_t* block, int j) {
    const auto word = word_at<std::uint16_t>(block + 34 + 2 * j);
    StoredGroup out{};
    out.scale = odd(word >> 12 & 7);
    for (int i = 0; i < 4; ++i)
        put_point(kIq1Grid[block[2 + 4 * j + i] | (word >> 3 * i & 7) << 8], word >> 15 ? 255 : 0, 2,
                  out.codes + 8 * i);
    return out;
}

// The low bytes of 32 indices, their nibbles of 3 top bits and the shift, 4 words of scales: each 4 of 3 bits, and above
// them a nibble of the factor.
static inline StoredGroup read_iq1_m(const std::uint8_t* block, int j) {
    StoredGroup out{};
    out.scale = odd(word_at<std::uint16_t>(block + 48 + j / 4 * 2) >> j % 4 * 3 & 7);
    for (int i = 0; i < 2; ++i) {
        const int top = nibble_at(block + 32, 2 * j + i);
        put_point(kIq1Grid[block[2 * j + i] | (top & 7) << 8], top >> 3 ? 255 : 0, 2, out.codes + 8 * i);
    }
    return out;
}

static inline std::uint16_t iq1_m_factor(const std::uint8_t* block) {
    std::uint16_t factor = 0;
    for (int i = 0; i < 4; ++i)
        factor |= static_cast<std::uint16_t>(word_at<std::uint16_t>(block + 48 + 2 * i) >> 12 << 4 * i);
    return factor;
}

}  // namespace forerun
