# The instances of the products' and the convolution's kernels, a source each (kernel_instances.cmake).
set(types "bf16=__nv_bfloat16 f16=__half")
set(forms "forward=forward input=input_gradient weight=weight_gradient")

kernel_instances(gemm/wgmma/wgmma NAMESPACE saturate::kernels::wgmma INCLUDE kernels/gemm/wgmma/wgmma_launch.cuh
                 AXES "${forms}" "${types}"
                 TEXT "template cudaError_t launch_form<@2@, Form::@1@>(Shape, const Problem&, int, cudaStream_t);")
kernel_instances(gemm/wgmma/wgmma_activation NAMESPACE saturate::kernels::wgmma
                 INCLUDE kernels/gemm/wgmma/wgmma_activation.cuh AXES "${types}" "cooperative=false ping_pong=true"
                 TEXT "template cudaError_t launch_activation<@1@, @2@>(ActivationKind, const Problem&, int, cudaStream_t);")
kernel_instances(gemm/wgmma/wgmma_slopes NAMESPACE saturate::kernels::wgmma INCLUDE kernels/gemm/wgmma/wgmma_slopes.cuh
                 AXES "${types}" "shared=false by_turns=true"
                 TEXT "template cudaError_t launch_slopes<@1@, @2@>(ActivationKind, const SlopesProblem&, int, cudaStream_t);")
kernel_instances(gemm/wgmma/wgmma_bits NAMESPACE saturate::kernels::wgmma INCLUDE kernels/gemm/wgmma/wgmma_bits.cuh
                 AXES "${types}" "shared=false by_turns=true"
                 TEXT "template cudaError_t launch_with_bits<@1@, @2@>(const Problem&, int, cudaStream_t);")
kernel_instances(gemm/wgmma/wgmma_activation_and_slopes NAMESPACE saturate::kernels::wgmma
                 INCLUDE kernels/gemm/wgmma/wgmma_activation.cuh AXES "${types}"
                 TEXT "template cudaError_t launch_activation_and_slopes<@1@, ActivationKind::gelu_tanh>(const Problem&, int, cudaStream_t);
template cudaError_t launch_activation_and_slopes<@1@, ActivationKind::gelu_erf>(const Problem&, int, cudaStream_t);")
kernel_instances(gemm/wgmma/wgmma_loss NAMESPACE saturate::kernels::wgmma INCLUDE kernels/gemm/wgmma/wgmma_loss.cuh
                 AXES "exponentials=exponentials scaled_rows=scaled_rows"
                 TEXT "template cudaError_t launch_@1@<__nv_bfloat16>(const Problem&, int, cudaStream_t);")
kernel_instances(gemm/grouped/grouped_wgmma NAMESPACE saturate::kernels::wgmma
                 INCLUDE kernels/gemm/grouped/grouped_wgmma.cuh AXES "${forms}" "${types}"
                 TEXT "template cudaError_t launch_grouped<@2@, GroupedForm::@1@>(const GroupedProblem&, int, cudaStream_t);")
kernel_instances(gemm/few_rows/few_rows NAMESPACE saturate::kernels::few_rows
                 INCLUDE kernels/gemm/few_rows/few_rows_kernel.cuh AXES "${types}"
                 TEXT "template cudaError_t launch<@1@>(const MatmulArgs&, const Plan&, bool, cudaStream_t);")
kernel_instances(gemm/mma/mma_gemm NAMESPACE saturate::kernels::mma INCLUDE kernels/gemm/mma/mma_gemm.cuh
                 AXES "${types}" "nn=no,no nt=no,yes tn=yes,no tt=yes,yes"
                 TEXT "template void launch<@1@, Transpose::@2@, Transpose::@3@>(const Context&, const MatmulArgs&, const Plan&);")
kernel_instances(gemm/sgemm/sgemm_tma NAMESPACE saturate::kernels INCLUDE kernels/gemm/sgemm/sgemm_tma.cuh
                 AXES "128=128 256=256" TEXT "template TmaKernel sgemm_tma_kernel_of<@1@>(bool, bool);")
kernel_instances(conv/conv2d NAMESPACE saturate::kernels::conv
                 INCLUDE kernels/conv/conv2d_@2@.cuh kernels/conv/conv2d_products.cuh
                 AXES "bf16=__nv_bfloat16,mma f16=__half,mma f32=float,plain"
                 TEXT "template void forward<@1@>(const Context&, const Conv2dArgs&);
template void input_gradient<@1@>(const Context&, const Conv2dBackwardArgs&);
template void weight_gradient<@1@>(const Context&, const Conv2dBackwardArgs&, const Split&);")
