! gfortran -fopenmp model.f90 main.f90 model.o -o main
! Threads share the samples. Each calls the network on its own, and has gradients of its own, which are added.
program main
  use, intrinsic :: iso_c_binding, only: c_float, c_intptr_t
  use model
  implicit none
  integer, parameter :: batch = 3
  real(c_float) :: p(model_size_of_params), g(model_size_of_params), mine(model_size_of_params)
  real(c_float) :: x(4, batch), y(4, batch), dx(4, batch)
  integer :: i

  open (10, file="parameters.txt", status="old")
  read (10, *) p
  close (10)
  x = reshape([(-1.0 + 2.0*i/11.0, i=0, 11)], [4, batch])
  g = 0
  !$omp parallel do private(mine) reduction(+:g)
  do i = 1, batch
    call model_forward(1_c_intptr_t, x(:, i:i), p, y(:, i:i))
    call model_vjp(1_c_intptr_t, x(:, i:i), p, y(:, i:i), mine, dx(:, i:i))
    g = g + mine
  end do
  print "(f0.4, 1x, f0.4, 1x, f0.4)", sum(real(y, 8)), sum(real(g, 8)), sum(real(dx, 8))
end program main
