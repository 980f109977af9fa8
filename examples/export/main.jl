# julia main.jl, beside model.so and parameters.txt. Julia's first index runs fastest: x is (inputs, batch).
p = parse.(Float32, readlines("parameters.txt"))
x = reshape(Float32.(range(-1, 1; length = 12)), 4, 3)
y, dx, g = similar(x), similar(x), similar(p)
const model = joinpath(@__DIR__, "model.so")

ccall((:model_forward, model), Cvoid, (Cptrdiff_t, Ptr{Float32}, Ptr{Float32}, Ptr{Float32}), 3, x, p, y)
ccall(
    (:model_vjp, model), Cvoid,
    (Cptrdiff_t, Ptr{Float32}, Ptr{Float32}, Ptr{Float32}, Ptr{Float32}, Ptr{Float32}), 3, x, p, y, g, dx,
)
println(join(round.((sum(y), sum(g), sum(dx)); digits = 4), " "))
